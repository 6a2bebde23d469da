"""The table for accelerators, with small sizes on a CPU: its plumbing."""

import json

import pytest
from helpers import make_config

from benchmarks import accelerator
from traces_jax.host import errors, runtime


def test_a_row_and_its_files(tmp_path, capsys):
    config = make_config(
        task="SafetyBallRun-v0", physics="native", steps=80,
        environment={"count": 4, "steps": 10, "reset_each_iteration": False},
        ppo={"minibatch": 40, "passes": 1}, policy={"hidden": (4,)}, critic={"hidden": (4,)},
    )  # fmt: skip
    row = accelerator.measure(config, 1)
    assert row.keys() == accelerator._COLUMNS.keys() and all(value > 0 for value in row.values())
    about = {**runtime.describe(), "task": config.task, "environments": 4, "steps": 10, "date": "2030-01-02"}
    accelerator.save(tmp_path / "new", [row], about)
    (written,) = (tmp_path / "new").glob("*-2030-01-02.json")
    assert json.loads(written.read_text()) == {**about, "rows": [row]}
    table = written.with_suffix(".md").read_text()
    assert table.count("\n|") == 3 and table in capsys.readouterr().out and "jax 0." in table


def test_sizes_change_and_the_number_of_minibatches_stays():
    given = {"seeds": 2, "preset": "paper", "physics": "native"}
    config = accelerator.settings("half_cheetah", given, {"count": 4, "steps": 1000})
    assert (config.seeds, config.environment.count, config.environment.steps) == (2, 4, 1000)
    assert config.samples // config.ppo.minibatch == 20 * 1000 // 100
    assert config.policy.mean == "free"  # the preset's
    with pytest.raises(errors.UserError, match=r"--experiment=nothing is not right"):
        accelerator.settings("nothing", given, {})
