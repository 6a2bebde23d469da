"""A run that is labelled from outside: interrupted, by people and in the browser, it stays the same run."""

import contextlib
import json
import pathlib
import threading

import helpers
import jax.numpy as jnp
import pytest
from helpers import assert_same_run, make_config

from benchmarks import label_page
from benchmarks.browser import PROGRAM, browser
from traces_jax.feedback.trajectories import first_true
from traces_jax.host.label import clips, outside, store
from traces_jax.host.label.store import Said, Store
from traces_jax.host.run import loop
from traces_jax.tasks import fall


class NoCost(helpers.NoCost, fall.Fall):
    """A fall that nobody can put into numbers."""


FALL = {
    "task": "test_label_run:NoCost",
    "physics": "native",
    "steps": 900,
    "seeds": 2,
    "method": {"source": "traces"},
    "environment": {"count": 2, "steps": 150},
    "ppo": {"minibatch": 50, "passes": 1},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
    "estimator": {"decoder": (8,), "hidden": 2, "depth": 1},
    "query": {"fraction": 0.5},
    "refit": {"store": 16, "passes": 1, "steps": 1},
    "run": {"evaluation_episodes": 0, "tensorboard": False},
}
# Of three iterations and two seeds.
CLIPS = 6


def label(folder: pathlib.Path, count: int) -> None:
    """Labels `count` clips as the scripted judge does, from what the page is given."""
    base = Store(folder)
    items = base.next("judge", count)
    assert len(items) == count
    for item in items:
        _, positions = base.positions(item.id)
        step = int(first_true(fall.fallen(jnp.asarray(positions))[None], jnp.asarray([item.length]))[0])
        base.answer(item.id, "judge", Said("accept") if step < 0 else Said("from", step), 0)
    base.close()


@contextlib.contextmanager
def labelling_in_the_browser(folder: pathlib.Path):
    """The judge sits at the page for as long as this lasts."""
    enough, base = threading.Event(), Store(folder)
    with label_page.served(folder) as address, browser() as chromium:

        def sit() -> None:
            page, own = chromium.tab(), Store(folder)
            label_page.enter(page, address, "judge")
            while not enough.is_set():
                label_page.judge(page, own)
            own.close()

        thread = threading.Thread(target=sit)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()
    base.close()


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
def test_people_label_an_interrupted_run(tmp_path, monkeypatch):
    """The run that is labelled on the page, stopped in between, equals the run that a function labels."""
    monkeypatch.setattr(store, "UNDO_SECONDS", 0.0)
    monkeypatch.setattr(clips, "_WIDTH", 80)
    monkeypatch.setattr(clips, "_HEIGHT", 60)
    people = make_config(**FALL, labels={"by": "people"})
    folder = tmp_path / "people"
    with pytest.raises(outside.LabelsNeeded, match=r"labels are needed; python -m traces_jax"):
        loop.train(people, folder, labels="exit")
    label(folder, 2)
    with pytest.raises(outside.LabelsNeeded):
        loop.train(people, folder, labels="exit")
    with labelling_in_the_browser(folder):
        assert loop.train(people, folder, labels="wait")
    base = Store(folder)
    said = [(row["lane"], row["iteration"]) for row in base.rows() if not row["repeat"]]
    assert len(said) == CLIPS == len(set(said)), "every clip was asked for once"
    assert base.fact("state") == "complete" and base.fact("question") == "Does it fall?"
    base.close()
    assert loop.train(make_config(**FALL, labels={"by": "traces_jax.tasks.fall:judge"}), tmp_path / "function")
    assert_same_run(tmp_path / "function", folder)
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    for name in ("episode/cost", "deployed/cost", "window/cost", "episode/accepted", "query/accepted_pool"):
        assert row[name] is None, name
    assert row["estimate/right"] is None and row["estimate/cost_where_none"] is None
    assert row["labels/trajectories"] == 3.0 and row["finite"] == 1.0 and row["query/accepted_picked"] in (0.0, 1.0)
