"""The page in a real browser: twenty clips by keyboard, an undo, a mark, a reload, a second annotator."""

import contextlib
import threading
import time

import mujoco
import numpy as np
import pytest
import uvicorn
from browser import PROGRAM, browser

from traces_jax.host.label import outside, server
from traces_jax.host.label.store import Identity, Store
from traces_jax.tasks import base

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")

STEPS, CLIPS = 12, 20


def fill(folder, count=CLIPS, steps=STEPS):
    """A run folder in which clips wait."""
    model = mujoco.MjModel.from_xml_path(str(base.MODELS / "half_cheetah.xml"))
    positions = np.zeros((steps, model.nq), np.float32)
    positions[:, 2] = np.linspace(0.0, 1.5, steps)
    filled = Store(folder)
    filled.describe(
        **{"task": "T", "question": "Does it fall?", "guide": "Look.", "seconds": 0.05, "nq": model.nq},
        **{"model": outside._packed(model), "expected": count, "repeats": 0.0, "state": "waiting"},
        examples="[]",
    )
    filled.ask([(Identity("seed=0", number, 0, 0), positions, steps) for number in range(count)])
    return filled


@contextlib.contextmanager
def served(folder):
    """The page's address."""
    app, desk = server.make(folder, token=None)
    settings = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none")
    socket = settings.bind_socket()
    running = uvicorn.Server(settings)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/"
    finally:
        running.should_exit = True
        thread.join()
        desk.studio.close()


READY = "page.queue.length && page.queue[0].url && !video.hidden && video.readyState >= 2"


def enter(page, address, name):
    page.open(address)
    page.wait("document.querySelector('#intro:not([hidden])')")
    page.value(f"document.getElementById('name').value = {name!r}")
    page.value("document.querySelector('#enter button').click()")
    page.wait(READY)


def test_clips_are_labelled_by_keyboard(tmp_path):
    filled = fill(tmp_path)
    with served(tmp_path) as address, browser() as tab:
        ann, bob = tab(), tab()
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
        while (left := filled.counts("ann")["left"]) and time.monotonic() < end:
            for page, key in ((ann, "a"), (bob, "r")):
                if page.value(READY):
                    page.key(key)
            if left == CLIPS // 2:
                assert ann.value("Number(document.body.dataset.milliseconds) >= 0")
        filled.describe(state="complete")
        ann.wait("document.querySelector('#end:not([hidden])')")
        assert not ann.messages and not bob.messages, "no script failed, nothing was blocked"
        assert all(url.startswith((address, "blob:", "data:")) for url in ann.requests), "no outside request"
    rows = filled.rows()
    assert len(rows) == CLIPS == len({row["iteration"] for row in rows}), "each clip once"
    assert {row["annotator"] for row in rows} == {"ann", "bob"}
    assert [(row["verdict"], row["step"]) for row in rows if row["id"] == marked] == [("from", 3)]
    assert [row["verdict"] for row in rows if row["id"] == undone] == ["unsure"]
    filled.close()
