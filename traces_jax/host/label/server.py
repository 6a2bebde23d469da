"""The page on which people label: routes, and the answers that they give.

Everything that a request can name is a showing, a random text that is looked up in labels.db, or the number of an
example. No part of a request becomes part of a path.
"""

import asyncio
import json
import pathlib
import re
import threading
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from traces_jax.host import errors
from traces_jax.host.label import agreement, scenes
from traces_jax.host.label.clips import Studio, unpacked
from traces_jax.host.label.guard import SCENE, Guard
from traces_jax.host.label.store import FROM, VERDICTS, Item, Refused, Said, Store

# Clips that a page holds: the one on the screen and those that come next.
_AHEAD = 4
_ANNOTATOR = re.compile(r"[\w][\w .'-]{0,39}")
_SHOWING = re.compile(r"[0-9a-f]{32}")
# The page's files and their types.
_FILES = {"": "index.html", "app.js": "app.js", "style.css": "style.css", "icon.svg": "icon.svg"}
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class _Bad(Exception):
    """A request that is not right, in one sentence."""


class Desk:
    """Answers the page's requests for one run."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._stores = threading.local()
        model = self.store.fact("model")
        if model is None:
            raise errors.UserError(
                f"--run={folder} has asked for no labels yet; start its training with labels.by=people first."
            )
        seconds = float(self.store.fact("seconds"))
        self._studio = Studio(folder, model, seconds)
        self._scenes = scenes.Scenes(unpacked(model), seconds) if scenes.available() else None

    @property
    def store(self) -> Store:
        """This thread's own connection."""
        if not hasattr(self._stores, "own"):
            self._stores.own = Store(self._folder)
        return self._stores.own

    # --- What the page asks for. Each takes the request's JSON and returns JSON.

    def about(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The task, its question and its examples."""
        del asked
        store, pace = self.store, self._studio.pace
        return {
            "task": store.fact("task"),
            "question": store.fact("question"),
            "guide": store.fact("guide"),
            "examples": self._examples(),
            "fps": float(pace.fps),
            "every": pace.every,
            "scenes": self._scenes is not None,
        }

    def next(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The next clips, and how many are left."""
        annotator = _annotator(asked)
        items = self.store.next(annotator, _AHEAD)
        for item in items:
            self._start(item.id)
        return {"items": [self._json(item) for item in items], **self._progress(annotator)}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Writes an answer."""
        annotator, verdict, step = _annotator(asked), asked.get("verdict"), asked.get("step")
        if verdict not in VERDICTS:
            raise _Bad("There is no such verdict.")
        if (verdict == FROM) != (step is not None) or not (step is None or _is_count(step)):
            raise _Bad("Only the verdict 'from' has a step.")
        replays = asked.get("replays", 0)
        if not _is_count(replays):
            raise _Bad("There is no such number of replays.")
        self.store.answer(_showing(asked.get("id")), annotator, Said(verdict, step), replays)
        return self._progress(annotator)

    def undo(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Takes the last answer back."""
        annotator = _annotator(asked)
        item = self.store.undo(annotator)
        self._start(item.id)
        return {"item": self._json(item), **self._progress(annotator)}

    def summary(self, asked: dict[str, Any]) -> dict[str, Any]:
        """How well answers agree."""
        return {**agreement.summary(self.store.rows()), **self._progress(_annotator(asked))}

    def _progress(self, annotator: str) -> dict[str, Any]:
        store = self.store
        return {
            **store.counts(annotator),
            "expected": store.fact("expected", 0),
            "state": store.fact("state", "waiting"),
        }

    def _json(self, item: Item) -> dict[str, Any]:
        frames = -(-item.length // self._studio.pace.every)
        return {"id": item.id, "steps": item.length, "frames": frames}

    def _start(self, showing: str) -> Any:
        """Begins to make a clip. Returns its future, or None if there is nothing to see."""
        found = self.store.positions(showing)
        return None if found is None else self._studio.clip(f"clip-{found[0]}", found[1])

    def clip(self, name: str) -> Any:
        """The future of the clip behind a showing."""
        return self._start(name) if _SHOWING.fullmatch(name) else None

    def scene(self, name: str) -> Any:
        """The future of the page that shows the clip behind a showing from any side."""
        found = self.store.positions(name) if self._scenes is not None and _SHOWING.fullmatch(name) else None
        return None if found is None or self._scenes is None else self._scenes.page(str(found[0]), found[1])

    def close(self) -> None:
        """Ends what draws clips."""
        self._studio.close()
        if self._scenes is not None:
            self._scenes.close()

    # --- Examples.

    def _examples(self) -> list[dict[str, Any]]:
        return json.loads(self.store.fact("examples", "[]"))

    def example(self, name: str) -> Any:
        """The future of an example's clip."""
        if name not in ("0", "1"):
            return None
        packed = self.store.fact(f"example-{name}")
        if packed is None:
            return None
        positions = np.frombuffer(packed, np.float32).reshape(-1, int(self.store.fact("nq")))
        return self._studio.clip(f"example-{name}", positions)


def _annotator(asked: dict[str, Any]) -> str:
    name = asked.get("annotator")
    if not isinstance(name, str) or not _ANNOTATOR.fullmatch(name):
        raise _Bad("A name has 1 to 40 letters, digits, spaces, dots or dashes.")
    return name


def _showing(value: Any) -> str:
    if not isinstance(value, str) or not _SHOWING.fullmatch(value):
        raise _Bad("There is no such clip.")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def make(folder: pathlib.Path, *, token: str | None) -> tuple[Guard, Desk]:
    """The application for a run folder. token: what its users must have; None if only this machine can reach it."""
    desk = Desk(folder)

    def data(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable:
        async def endpoint(request: Request) -> Response:
            try:
                asked = json.loads(await request.body())
                if not isinstance(asked, dict):
                    raise _Bad("A request is a JSON object.")
                return JSONResponse(await asyncio.to_thread(answer, asked))
            except (ValueError, RecursionError, _Bad) as error:
                sentence = str(error) if isinstance(error, _Bad) else "A request is a JSON object."
                return JSONResponse({"error": sentence}, 400)
            except Refused as error:
                return JSONResponse({"error": str(error)}, 409)

        return endpoint

    def made(find: Callable[[str], Any], kind: str, headers: dict[str, str] | None = None) -> Callable:
        async def endpoint(request: Request) -> Response:
            future = await asyncio.to_thread(find, request.path_params["name"])
            if future is None:
                return Response(status_code=404)
            return Response(await asyncio.wrap_future(future), media_type=kind, headers=headers)

        return endpoint

    def page(name: str) -> Callable:
        content = resources.files("traces_jax.host.label").joinpath("page", name).read_bytes()
        kind = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"

        async def endpoint(request: Request) -> Response:
            del request
            return Response(content, headers={"content-type": kind})

        return endpoint

    calls = {"about": desk.about, "next": desk.next, "answer": desk.answer, "undo": desk.undo, "summary": desk.summary}
    routes = [
        *(Route(f"/{path}", page(name)) for path, name in _FILES.items()),
        *(Route(f"/api/{name}", data(call), methods=["POST"]) for name, call in calls.items()),
        Route("/api/clip/{name}", made(desk.clip, "video/webm")),
        Route("/api/example/{name}", made(desk.example, "video/webm")),
        Route("/scene/{name}", made(desk.scene, "text/html", SCENE)),
    ]
    return Guard(Starlette(routes=routes), token=token), desk
