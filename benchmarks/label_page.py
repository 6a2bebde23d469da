"""The labeling page in headless Chromium: python -m benchmarks.label_page [--pictures docs/pictures]

Prints how long a clip takes to be drawn and encoded, and how long it takes from an answer to the next clip on the
screen when that clip is loaded already. Tests use the same functions to label as a person would, by keyboard.
"""

import contextlib
import json
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import mujoco
import numpy as np
import uvicorn
from absl import flags

from benchmarks.browser import Page, browser
from traces_jax import tasks
from traces_jax.feedback.trajectories import first_true
from traces_jax.host import cli
from traces_jax.host.label import outside, server
from traces_jax.host.label.store import Identity, Said, Store
from traces_jax.tasks import base, fall

_PICTURES = flags.DEFINE_string("pictures", None, "Also save pictures of the page into this folder.")
_CLIPS = flags.DEFINE_integer("clips", 20, "How many clips are labelled.")

# A clip is on the screen.
READY = "page.queue.length && page.queue[0].url && !video.hidden && video.readyState >= 2"


def fill(folder: pathlib.Path, clips: Sequence[np.ndarray], examples: Sequence[base.Example] = ()) -> Store:
    """A run folder in which clips of the HalfCheetah, positions [T, nq], wait."""
    model = mujoco.MjModel.from_xml_path(str(base.MODELS / "half_cheetah.xml"))
    filled = Store(folder)
    filled.describe(
        **{"task": "T", "question": fall.Fall.question, "guide": fall.Fall.guide, "seconds": 0.05, "nq": model.nq},
        **{"model": outside.packed(model), "expected": len(clips), "repeats": 0.0, "state": "waiting"},
        **{f"example-{number}": one.positions.tobytes() for number, one in enumerate(examples)},
        examples=json.dumps([{"words": one.words, "violation": one.violation} for one in examples]),
    )
    filled.ask([(Identity("seed=0", number, 0, 0), clip, len(clip)) for number, clip in enumerate(clips)])
    return filled


@contextlib.contextmanager
def served(folder: pathlib.Path) -> Iterator[str]:
    """The address of the page of a run folder."""
    app, desk = server.make(folder, token=None)
    settings = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none")
    socket = settings.bind_socket()
    running = uvicorn.Server(settings)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [socket]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/"
    finally:
        running.should_exit = True
        thread.join()
        desk.close()


def enter(page: Page, address: str, name: str, *, seconds: float = 240.0) -> None:
    """Opens the page under a name. seconds: how long to wait for it."""
    page.open(address)
    page.wait("document.querySelector('#intro:not([hidden])')", seconds)
    page.value(f"document.getElementById('name').value = {name!r}")
    page.value("document.querySelector('#enter button').click()")


def judge(page: Page, store: Store) -> tuple[str, Said] | None:
    """Labels the clip on the screen as the task's scripted judge does. Returns its id and the answer, once it has been
    sent; None if there is no clip.
    """
    if not page.value(READY):
        return None
    showing = str(page.value("page.queue[0].id"))
    found = store.positions(showing)
    assert found is not None
    clip = found[1]
    step = int(first_true(fall.fallen(jnp.asarray(clip))[None], jnp.asarray([len(clip)]))[0])
    if step < 0:
        page.key("a")
    else:
        page.value(f"seek({step})")
        page.wait(f"video.paused && page.frame === {step}")
        page.key("x")
    page.wait(f"!page.queue.length || page.queue[0].id !== {showing!r}")
    page.value("page.sending.then(() => 0, () => 0)")
    return showing, Said("accept") if step < 0 else Said("from", step)


def _pictures(folder: pathlib.Path, page: Page, address: str) -> None:
    """Pictures of the introduction and of a clip, on a screen and on a phone, light and dark."""
    phone, desktop = (390, 844), (1200, 860)
    for name, size, touch in (("label_intro", desktop, False), ("label_intro_phone", phone, True)):
        page.size(*size, touch=touch)
        page.open(address)
        page.wait("document.querySelectorAll('#examples video').length === 2")
        page.wait("[...document.querySelectorAll('#examples video')].every((one) => one.readyState >= 2)")
        page.value("document.querySelectorAll('#examples video').forEach((one) => { one.pause(); })")
        page.value("document.querySelectorAll('#examples video')[1].currentTime = 1.6")
        page.wait("!document.querySelectorAll('#examples video')[1].seeking")
        page.picture(folder / f"{name}.png")
    enter(page, address, "ann")
    page.wait(READY)
    page.value("seek(31)")
    page.wait("!video.seeking")
    for name, size, touch, dark in (
        ("label_desktop", desktop, False, False),
        ("label_dark", desktop, False, True),
        ("label_phone", phone, True, False),
    ):
        page.size(*size, touch=touch, dark=dark)
        time.sleep(0.5)
        page.picture(folder / f"{name}.png")
    page.size(*desktop)


def main() -> int:
    """The command line."""
    task = tasks.make("SafetyHalfCheetahFall-v0")
    _, falls = examples = task.examples()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        store = fill(folder, [falls.positions] * _CLIPS.value, examples)
        with served(folder) as address, browser() as chromium:
            page = chromium.tab()
            if _PICTURES.value:
                _pictures(pathlib.Path(_PICTURES.value), page, address)
            began = time.monotonic()
            enter(page, address, "ann")
            waited = []
            for _ in range(_CLIPS.value - 1):
                page.wait(f"{READY} && page.queue.slice(0, 2).every((clip) => clip.url)")
                current = page.value("page.queue[0].id")
                page.value("delete document.body.dataset.milliseconds")
                page.key("a")
                page.wait("document.body.dataset.milliseconds")
                assert page.value("page.queue[0].id") != current
                waited.append(int(page.value("Number(document.body.dataset.milliseconds)")))
            store.describe(state="complete")
            page.key("a")
            page.wait("document.querySelector('#end:not([hidden])')")
            print(f"{_CLIPS.value} clips in {time.monotonic() - began:.0f} s")
            if _PICTURES.value:
                page.picture(pathlib.Path(_PICTURES.value) / "label_end.png")
        times = sorted(path.stat().st_mtime for path in (folder / "clips").glob("clip-*.webm"))
        print(f"from answer to next clip: median {statistics.median(waited):.0f} ms, longest {max(waited)} ms")
        drawn = np.diff(times)
        print(f"a clip of {len(falls.positions)} steps: median {statistics.median(drawn):.2f} s between files")
        store.close()
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
