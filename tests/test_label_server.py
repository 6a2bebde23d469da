"""The page's server: what it answers, and what it refuses."""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import socket
import sys

import httpx
import mujoco
import numpy as np
import pytest

from benchmarks import label_page
from traces_jax.host.label import clips, guard, outside, server, store
from traces_jax.host.label.store import Identity, Store
from traces_jax.tasks import base

HALF_CHEETAH = mujoco.MjModel.from_xml_path(str(base.MODELS / "half_cheetah.xml"))
LENGTH = 6
ANN = {"annotator": "ann"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run folder in which twelve clips wait."""
    made = tmp_path_factory.mktemp("run")
    positions = np.zeros((LENGTH, HALF_CHEETAH.nq), np.float32)
    filled = Store(made)
    filled.describe(
        **{"task": "T", "question": "Does it fall?", "guide": "Look.", "seconds": 0.05, "nq": HALF_CHEETAH.nq},
        **{"model": outside.packed(HALF_CHEETAH), "expected": 12, "repeats": 0.0, "example-0": positions.tobytes()},
        examples=json.dumps([{"words": "It stands.", "violation": None}]),
    )
    filled.ask([(Identity("seed=7", number, 0, 0), positions, LENGTH) for number in range(12)])
    filled.close()
    return made


def talk(folder, requests, *, token=None, host="127.0.0.1:8765"):
    """Sends requests (method, path, keywords) to a new server. Returns their responses."""

    async def run():
        app, desk = server.make(folder, token=token)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            found = [await client.request(method, path, **rest) for method, path, rest in requests]
        await asyncio.to_thread(desk.close)
        return found

    return asyncio.run(run())


@contextlib.contextmanager
def written():
    """Paths of what is opened for writing, made, renamed or removed by this process meanwhile."""
    paths, going_on = [], True

    def hear(event, given):
        if going_on and (
            (event == "open" and isinstance(given[0], str) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            or event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "sqlite3.connect")
        ):
            paths.append(os.fspath(given[0]))

    sys.addaudithook(hear)  # It stays for ever, but deaf.
    try:
        yield paths
    finally:
        going_on = False


def post(name, asked, **headers):
    return ("POST", f"/api/{name}", {"json": asked, "headers": headers})


def test_labels_are_given_and_undone(folder):
    (page, about, first) = talk(folder, [("GET", "/", {}), post("about", {}), post("next", ANN)])
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert about.json()["question"] == "Does it fall?" and about.json()["fps"] == 20.0
    items = first.json()["items"]
    assert len(items) == 4 and first.json()["left"] == 12
    assert set(items[0]) == {"id", "steps", "frames"}, "nothing about policy, seed or score"
    said = {**ANN, "id": items[0]["id"], "verdict": "from", "step": 3}
    answered, again, other, undone = talk(
        folder,
        [post("answer", said), post("answer", said), post("answer", {**said, "step": 4}), post("undo", ANN)],
    )
    assert answered.status_code == again.status_code == 200 and answered.json()["left"] == 11
    assert other.status_code == 409 and other.json()["error"] == "This clip is labelled already."
    assert undone.json()["item"]["id"] == items[0]["id"] and undone.json()["left"] == 12


def test_a_clip_is_a_video_of_every_step(folder):
    av = pytest.importorskip("av")
    (item,) = talk(folder, [post("next", ANN)])[0].json()["items"][:1]
    clip, example, nothing, wrong = talk(
        folder,
        [
            ("GET", f"/api/clip/{item['id']}", {}),
            ("GET", "/api/example/0", {}),
            ("GET", f"/api/clip/{'0' * 32}", {}),
            ("GET", "/api/example/1", {}),
        ],
    )
    assert clip.headers["content-type"] == "video/webm" and example.status_code == 200
    assert nothing.status_code == wrong.status_code == 404
    import io

    with av.open(io.BytesIO(clip.content)) as container:
        frames = list(container.decode(video=0))
    assert len(frames) == LENGTH and all(frame.key_frame for frame in frames), "each can be shown at once"
    assert sorted(path.name for path in (folder / clips.FOLDER).iterdir())[-1] == "example-0.webm"


def test_another_machine_needs_the_token(folder):
    bearer = lambda token: {"authorization": f"Bearer {token}"}  # noqa: E731
    page, none, wrong, right = talk(
        folder,
        [
            ("GET", "/", {}),
            post("about", {}),
            post("about", {}, **bearer("guess")),
            post("about", {}, **bearer("secret")),
        ],
        token="secret",
        host="10.0.0.7:8765",
    )
    assert [found.status_code for found in (page, none, wrong, right)] == [200, 401, 401, 200]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post("next", ANN, host="evil.example"), 403),
        (post("next", ANN, origin="http://evil.example"), 403),
        (post("next", ANN, origin="null"), 403),
        (post("next", ANN, **{"sec-fetch-site": "cross-site"}), 403),
        (("POST", "/api/next", {"data": {"annotator": "ann"}}), 415),
        (("POST", "/api/next", {"content": b"{}", "headers": {"content-type": "text/plain"}}), 415),
        (("POST", "/api/next", {"content": b"x" * 5000, "headers": {"content-type": "application/json"}}), 413),
        (("DELETE", "/api/next", {}), 405),
        (("GET", "/api/next", {}), 405),
        (("GET", "/" + "x" * 600, {}), 431),
        (("GET", "/", {"headers": {"cookie": "x" * 20000}}), 431),
        (("GET", "/api/clip/..%2f..%2flabels.db", {}), 404),
        (("GET", "/../run.json", {}), 404),
        (("GET", "/labels.db", {}), 404),
        (post("next", {"annotator": "../x"}), 400),
        (post("next", {"annotator": 3}), 400),
        (post("next", {}), 400),
        (("POST", "/api/next", {"content": b"[]", "headers": {"content-type": "application/json"}}), 400),
        (("POST", "/api/next", {"content": b"{" * 3000, "headers": {"content-type": "application/json"}}), 400),
        (post("answer", {**ANN, "id": "0" * 32, "verdict": "accept"}), 409),
        (post("answer", {**ANN, "id": "../x", "verdict": "accept"}), 400),
        (post("answer", {**ANN, "id": "0" * 32, "verdict": "maybe"}), 400),
        (post("answer", {**ANN, "id": "0" * 32, "verdict": "from"}), 400),
        (post("answer", {**ANN, "id": "0" * 32, "verdict": "from", "step": True}), 400),
        (post("undo", {"annotator": "nobody"}), 409),
    ],
    ids=range(25),
)
def test_what_is_refused(folder, request_, status):
    (found,) = talk(folder, [request_])
    assert found.status_code == status
    assert "content-security-policy" in found.headers


def test_nobody_can_send_without_end(folder, monkeypatch):
    monkeypatch.setattr(guard, "_RATE", 0.0)
    found = talk(folder, [("GET", "/", {})] * (guard._BURST + 5))
    assert [one.status_code for one in found] == [200] * guard._BURST + [429] * 5


def test_loopback():
    yes = ("127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1", "[::1]")
    no = ("0.0.0.0", "10.0.0.1", "evil.example", "127.0.0.1.evil.example", "", "::")
    assert all(map(guard.is_loopback, yes)) and not any(map(guard.is_loopback, no))


def test_hostile_requests(folder, monkeypatch):
    """Five hundred: no failure of the server, and no file is written but those of the store and clips."""
    monkeypatch.setattr(guard, "_BURST", 10_000)
    pick = random.Random(0).choice
    values = [None, True, -1, 1e308, 2**70, "", "\x00", "../../etc/passwd", "ann", "0" * 32, [], {}, "😀" * 30, [[[]]]]
    calls = ("next", "answer", "undo", "summary", "about", "clip/%00", "clip/", "example/-1")
    paths = [f"/api/{name}" for name in calls]
    paths += ["/", "/app.js/..", "/api/clip/" + "f" * 32, "/%2e%2e/%2e%2e/etc/passwd", "//evil.example/"]
    bodies = [b"", b"\xff\xfe", b"null", b"{}", b'{"annotator": "ann"', b"1" * 4000, b'{"a":' * 700, b"NaN"]
    requests = []
    for _ in range(500):
        fields = {pick(["annotator", "id", "verdict", "step", "replays"]): pick(values) for _ in range(4)}
        content = pick([*bodies, json.dumps(fields).encode(), json.dumps({**ANN, **fields}).encode()])
        headers = {"content-type": pick(["application/json", "application/json", "text/html", "x" * 200])}
        headers |= pick(
            [{}, {}, {"origin": "http://evil"}, {"host": "evil"}, {"range": "bytes=-9"}, {"x": "\x7f" * 99}]
        )
        requests.append(
            (pick(["GET", "POST", "POST", "PUT", "HEAD"]), pick(paths), {"content": content, "headers": headers})
        )
    before = {path for path in folder.parent.rglob("*") if "clips" not in path.parts}
    with written() as paths:
        found = talk(folder, requests)
    assert all(pathlib.Path(path).is_relative_to(folder) for path in paths), paths
    assert max(one.status_code for one in found) < 500
    assert {one.status_code for one in found} >= {200, 400, 403, 404, 405, 415}
    assert {path for path in folder.parent.rglob("*") if "clips" not in path.parts} <= before | {
        folder / f"{store.NAME}{end}" for end in ("-wal", "-shm")
    }


RAW = (
    b"GET /%2e%2e/labels.db HTTP/1.1\r\nHost: %(host)s\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"BREW /api/next HTTP/1.1\r\nHost: %(host)s\r\n\r\n",
    b"\x00\xff\x16\x03\x01\r\n\r\n",
    b"POST /api/next HTTP/1.1\r\nHost: %(host)s\r\nContent-Length: -5\r\n\r\n",
    b"POST /api/next HTTP/1.1\r\nHost: %(host)s\r\nContent-Length: 3\r\nContent-Length: 9\r\n\r\n{}",
    b"POST /api/next HTTP/1.1\r\nHost: %(host)s\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: %(host)s\r\nHost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: \r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: %(host)s\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: %(host)s\r\nX: a\r\n b\x01\r\n\r\n",
    b"CONNECT evil.example:80 HTTP/1.1\r\nHost: %(host)s\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: %(host)s\r\n\r\n",
)


def test_what_is_not_even_http(folder):
    """Over a real connection, where bytes can be anything: the server refuses, and goes on."""
    with label_page.served(folder) as address:
        host, port = address.removeprefix("http://").rstrip("/").split(":")
        for raw in [*RAW, RAW[0]]:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(raw.replace(b"%(host)s", f"{host}:{port}".encode()))
                connection.shutdown(socket.SHUT_WR)
                said = b""
                while part := connection.recv(4096):
                    said += part
            status = int((said.split(b" ", 2)[1:2] or [b"400"])[0])
            # Some of it is right, such as a whole address instead of a path.
            assert status < 500, said
        assert httpx.get(address).status_code == 200
