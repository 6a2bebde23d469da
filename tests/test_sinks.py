"""Rows in other places than metrics.jsonl."""

import json

import numpy as np
import pytest
from helpers import make_config, wait_for

from traces_jax import config as config_lib
from traces_jax.host import sinks
from traces_jax.host.run import metrics


class Kept(sinks.Sink):
    """A sink as a user would write it."""

    made: list["Kept"] = []  # noqa: RUF012

    def __init__(self, run):
        super().__init__(run)
        self.rows, self.calls = [], []
        Kept.made.append(self)

    def add(self, row):
        self.rows.append(dict(row))

    def flush(self, *, now):
        self.calls.append(now)

    def close(self):
        self.calls.append("closed")


def write(folder, kinds, first, count, lanes=("seed=0", "seed=1")):
    """A part of a run: iterations first, ..., first + count - 1."""
    folder.mkdir(exist_ok=True)
    config = make_config()
    about = sinks.RunInfo(folder, "an identity", lanes, config_lib.to_dict(config))
    writer = metrics.MetricWriter(
        folder, dict.fromkeys(lanes, first), sinks=[kind(about) for kind in kinds], say=pytest.fail
    )
    for iteration in range(first, first + count):
        values = np.asarray([[iteration], [iteration + 0.5]])
        rows = {"finite": np.ones((2, 1)), "episode/return": values, "query/cv": np.full((2, 1), np.nan)}
        writer.write(iteration, rows, steps_per_iteration=100, seconds=1.0)
    writer.flush()
    writer.close()
    return about


def test_a_sink_of_ones_own_gets_every_row_and_again_after_a_resume(tmp_path):
    config = make_config(run={"sink": "test_sinks:Kept", "tensorboard": False})
    assert sinks.classes(config) == [Kept]
    Kept.made.clear()
    write(tmp_path / "run", [Kept], 0, 2)
    write(tmp_path / "run", [Kept], 2, 1)
    first, second = Kept.made
    assert [(row["lane"], row["iteration"]) for row in first.rows] == [(f"seed={s}", i) for i in (0, 1) for s in (0, 1)]
    assert len(second.rows) == 6 and second.rows[:4] == first.rows
    assert second.rows[-1] == json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert second.rows[-1]["episode/return"] == 2.5 and second.rows[-1]["query/cv"] is None
    # At once for the old rows, after the chunk, at the end.
    assert first.calls == [True, False, False, True, "closed"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("test_sinks:write", "must be a class derived from traces_jax.host.sinks.Sink"),
        ("no_such_module:Kept", "there is no module 'no_such_module'"),
    ],
)
def test_what_is_no_sink_is_refused_before_the_run(name, sentence):
    with pytest.raises(sinks.SinkError, match=sentence):
        sinks.classes(make_config(run={"sink": name}))


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    """One of its runs for each lane, with the same identity after a resume."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    kinds = sinks.classes(make_config(run={"sink": "wandb", "tensorboard": False}))
    assert [kind.__name__ for kind in kinds] == ["WeightsAndBiases"]
    write(tmp_path / "run", kinds, 0, 2)
    write(tmp_path / "run", kinds, 2, 1)
    found = sorted((tmp_path / "run/wandb").glob("offline-run-*"))
    # offline-run-<time>-<identity>; a second run of an identity within a second has a number after it.
    identities = [path.name.split("-")[3] for path in found]
    assert len(found) == 4 and len(set(identities)) == 2
    for path in found:
        logged = next(path.glob("*.wandb"))
        # Its service writes the last of it a moment after the run is finished.
        wait_for(lambda logged=logged: b"episode/return" in logged.read_bytes(), seconds=30.0)
        assert b"lagrange" in logged.read_bytes() and b"query/cv" not in logged.read_bytes()


def test_weights_and_biases_is_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    monkeypatch.delitem(__import__("sys").modules, "traces_jax.host.sinks.weights_and_biases", raising=False)
    with pytest.raises(sinks.SinkError, match=r"needs the package wandb: pip install 'traces_jax\[wandb\]'"):
        sinks.classes(make_config(run={"sink": "wandb"}))
