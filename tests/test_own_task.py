"""The documented example of a task of one's own, and names that lead nowhere."""

import importlib

import numpy as np
import pytest
from helpers import ROOT, make_config, train

from traces_jax import config, tasks
from traces_jax.host.run import announce, build


def test_the_example_learns(optimized):
    """A hundred iterations of a thousand steps bring the puck more than half of the way, 15 being all of it."""
    changes = importlib.import_module("examples.puck").get_config()
    changes.steps = 100_000
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


WHOLE = """
from traces_jax import tasks
class Own(tasks.Task):
    horizon, observation_size, action_size = 10, 1, 1
    def __init__(self, name, *, backend): pass
    def reset(self, rng): return tasks.make("ProbeBudget").reset(rng)
    def step(self, state, action): return state
"""


RIGHT = "it must be __init__(self, name, *, backend, **settings)."


@pytest.mark.parametrize(
    ("source", "says", "line"),
    [
        (WHOLE.replace("class", "klass"), "cannot be loaded: SyntaxError: invalid syntax", 3),
        (WHOLE + "1 / 0", "cannot be loaded: ZeroDivisionError: division by zero", 8),
        ("import nowhere_at_all", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'", 1),
        ("import json\njson.loads('')", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)", 2),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3", 1),
        (WHOLE.replace("def reset", "def again"), "is not right: Own must define reset.", None),
        (WHOLE.replace("__init__", "start"), f"fit (got an unexpected keyword argument 'name'); {RIGHT}", None),
        (WHOLE.replace("backend)", "size)"), f"fit (missing a required argument: 'size'); {RIGHT}", None),
        (WHOLE.replace("backend): pass", "backend): {}['key']"), "cannot be made: KeyError: 'key'", 5),
        (WHOLE.replace("backend): pass", "backend): raise ValueError('ab\\n' * 999)"), " ab ab ab ...", 5),
        (WHOLE.replace("horizon, ", "_, "), "AttributeError: 'Own' object has no attribute 'horizon'.", None),
        (WHOLE.replace("10, 1, 1", "0, 1, 1"), "has horizon=0; it must be a whole number above 0.", None),
        (WHOLE.replace("return tasks", "rng + nothing #"), "NameError: name 'nothing' is not defined", 6),
        (WHOLE.replace("return state", "return 1 / 0"), "is not right: ZeroDivisionError: division by zero", 7),
        (WHOLE.replace("return state", "return None"), "State with obs of shape (1,), the task's observation_size.",
         None),
        (WHOLE.replace("10, 1, 1", "10, 2, 1"), "State with obs of shape (2,), the task's observation_size.", None),
    ],
    ids=range(16),
)  # fmt: skip
def test_tasks_that_are_not_right(source, says, line, tmp_path, monkeypatch, request):
    """One sentence, and the line of the user's own file where there is one."""
    path = tmp_path / f"own_task_{request.node.callspec.id}.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(tasks.TaskError) as caught:
        tasks.make(f"{path.stem}:Own")
    assert str(caught.value).endswith(f"{says} ({path}, line {line})." if line else says)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_a_task_that_is_right_is_made(tmp_path, monkeypatch):
    (tmp_path / "own_task_right.py").write_text(WHOLE)
    monkeypatch.syspath_prepend(tmp_path)
    assert tasks.make("own_task_right:Own").horizon == 10


@pytest.mark.parametrize("name", ["SafetyAnt:", ":Puck", "examples/puck.py:Puck", "a b:C"])
def test_what_is_no_name_is_refused_with_the_config(name):
    with pytest.raises(config.ConfigError, match="does not exist"):
        make_config(task=name)


def test_the_example_that_learns_from_labels():
    """The same task, but the learner asks a labeler instead of reading the cost."""
    settings = config.from_dict(importlib.import_module("examples.puck_from_labels").get_config().to_dict())
    assert (settings.task, settings.method.source) == ("examples.puck:Puck", "traces")
    built = build.build(settings)
    assert built.program.learner.source.learns
    # 200 iterations of 10 episodes; 13 % of them.
    assert announce.lines(built)[-1].startswith("labels    up to 260 trajectories of each lane, of about 2,000 ")
