"""The documented example of a task of one's own, and names that lead nowhere."""

import importlib

import numpy as np
import pytest
from helpers import ROOT, make_config, train

from traces_jax import config, tasks


def test_the_example_learns(optimized):
    """Fifty iterations of a thousand steps bring the puck most of the way, 15 being all of it."""
    changes = importlib.import_module("examples.puck").get_config()
    changes.steps = 50_000
    _, _, rows = train(config.from_dict(changes.to_dict()))
    assert np.all(rows["finite"] == 1)
    assert rows["episode/return"][0, -1] > 8.0 > rows["episode/return"][0, 0]


def test_the_example_is_as_short_as_it_says():
    source = (ROOT / "examples/puck.py").read_text()
    body = source[source.index("class Puck") : source.index("def get_config")].strip().splitlines()
    assert len(body) <= 40


def test_the_hot_disc_costs():
    task = tasks.make("examples.puck:Puck")
    qpos, qvel = task.nominal
    cost = lambda x, y: float(task.step(task.reset_to(qpos.at[:].set((x, y)), qvel), np.zeros(2)).info["cost"])  # noqa: E731
    assert cost(0.75, 0.29) == 1.0
    assert cost(0.75, 0.31) == 0.0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.to_be_found:Task", "there is no module 'nowhere'; start from the folder that has it."),
        ("examples.nothing:Task", "there is no module 'examples.nothing'; start from the folder that has it."),
        ("examples.puck:Disc", "Disc must be a class derived from traces_jax.tasks.Task."),
        ("examples.puck:GOAL", "GOAL must be a class derived from traces_jax.tasks.Task."),
    ],
)
def test_names_that_lead_nowhere(name, says):
    with pytest.raises(tasks.TaskError) as caught:
        tasks.make(name)
    assert str(caught.value).endswith(says)


@pytest.mark.parametrize("name", ["SafetyAnt:", ":Puck", "examples/puck.py:Puck", "a b:C"])
def test_what_is_no_name_is_refused_with_the_config(name):
    with pytest.raises(config.ConfigError, match="does not exist"):
        make_config(task=name)
