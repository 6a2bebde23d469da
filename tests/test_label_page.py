"""The page in a real browser: twenty clips by keyboard, an undo, a mark, a reload, a second annotator."""

import time

import numpy as np
import pytest

from benchmarks import label_page
from benchmarks.browser import PROGRAM, browser
from benchmarks.label_page import READY
from traces_jax.host.label import clips

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")

STEPS, CLIPS = 12, 20


@pytest.fixture
def filled(tmp_path, monkeypatch):
    """A run folder in which small clips wait."""
    monkeypatch.setattr(clips, "_WIDTH", 80)
    monkeypatch.setattr(clips, "_HEIGHT", 60)
    positions = np.zeros((STEPS, 9), np.float32)
    positions[:, 2] = np.linspace(0.0, 1.5, STEPS)
    store = label_page.fill(tmp_path, [positions] * CLIPS)
    yield store
    store.close()


def enter(page, address, name):
    label_page.enter(page, address, name)
    page.wait(READY)


def test_clips_are_labelled_by_keyboard(tmp_path, filled):
    with label_page.served(tmp_path) as address, browser() as chromium:
        ann, bob = chromium.tab(), chromium.tab()
        enter(ann, address, "ann")
        enter(bob, address, "bob")
        # Steps forward are exact, and a mark says which one.
        ann.value("seek(0)")
        for expected in (1, 2, 3):
            ann.key("ArrowRight")
            ann.wait(f"video.paused && page.frame === {expected} && !video.seeking")
        assert ann.value("Math.floor(video.currentTime * page.about.fps)") == 3
        marked = ann.value("page.queue[0].id")
        ann.key("x")
        ann.wait(f"page.queue[0] && page.queue[0].id !== {marked!r}")
        # A view from any side lies over the video.
        ann.value("document.getElementById('scene').hidden = false")
        middle = (
            "document.elementFromPoint(innerWidth / 2, document.getElementById('stage').getBoundingClientRect().y + 9)"
        )
        assert ann.value(f"{middle}.id") == "scene"
        ann.value("document.getElementById('scene').hidden = true")
        # An answer is taken back and given again.
        ann.wait(READY)
        undone = ann.value("page.queue[0].id")
        ann.key("a")
        ann.wait(f"page.queue[0] && page.queue[0].id !== {undone!r}")
        ann.key("z")
        ann.wait(f"page.queue[0].id === {undone!r} && {READY}")
        ann.key("s")
        ann.wait(f"page.queue[0].id !== {undone!r}")
        # A page that is loaded again goes on where it was.
        ann.wait(f"{READY}")
        current = ann.value("page.sending.then(() => page.queue[0].id)")
        enter(ann, address, "ann")
        assert ann.value("page.queue[0].id") == current
        # Both finish.
        end = time.monotonic() + 240
        while filled.counts("ann")["left"] and time.monotonic() < end:
            for page, key in ((ann, "a"), (bob, "r")):
                if page.value(READY):
                    page.key(key)
        filled.describe(state="complete")
        ann.wait("document.querySelector('#end:not([hidden])')")
        assert ann.value("Number(document.body.dataset.milliseconds) >= 0"), "the page measures how fast it is"
        assert not ann.messages and not bob.messages, "no script failed, nothing was blocked"
        assert all(url.startswith((address, "blob:", "data:")) for url in ann.requests), "no outside request"
    rows = filled.rows()
    assert len(rows) == CLIPS == len({row["iteration"] for row in rows}), "each clip once"
    assert {row["annotator"] for row in rows} == {"ann", "bob"}
    assert [(row["verdict"], row["step"]) for row in rows if row["id"] == marked] == [("from", 3)]
    assert [row["verdict"] for row in rows if row["id"] == undone] == ["unsure"]
