"""What a request must pass before the page's own code sees it, as ASGI middleware.

The server is for one person on this machine, or for those who have its token. A browser sends requests for any web site
that it shows, so that being on this machine is not enough: a foreign Host (DNS rebinding) and a foreign Origin (cross-
site posts) are refused as well.
"""

import collections
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from typing import Any

# Bytes of a body, of all headers, and of a path.
_BODY, _HEADERS, _PATH = 4096, 16384, 512
# Requests that an address may send at once, and in a second after that.
_BURST, _RATE = 300, 60.0
# Addresses that are remembered.
_ADDRESSES = 1000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; media-src blob:; img-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A page of `scenes` is other people's code with its data inside: cut off from our page, from storage and from the net.
SCENE = {
    "content-security-policy": "sandbox allow-scripts; default-src 'none'; "
    "script-src 'unsafe-inline' 'wasm-unsafe-eval' data: blob:; worker-src data: blob:; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; connect-src data: blob:; frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",
}
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}

App = Callable[[Any, Any, Any], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses requests that are too large, too many, from elsewhere, or without the token."""

    def __init__(self, app: App, *, token: str | None):
        """token: what requests for data must have, for a server that others can reach; None on this machine."""
        self._app = app
        self._token = token
        self._allowance: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # A web socket is closed without a word.
            return
        status = self._refusal(scope)
        body = b""
        while not status:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > _BODY:
                status = 413
            if not message.get("more_body"):
                break
        if status:
            await _refuse(send, status)
            return
        sent = False

        async def replay() -> Any:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def finish(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", [])
                said = {name for name, _ in own}
                message = {**message, "headers": [*own, *(one for one in _encoded(HEADERS) if one[0] not in said)]}
            await send(message)

        await self._app(scope, replay, finish)

    def _refusal(self, scope: Any) -> int:
        """The status with which a request is refused; 0 if it is not."""
        given = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = dict(given)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405
        if len(scope.get("raw_path") or b"") > _PATH or sum(len(a) + len(b) for a, b in given) > _HEADERS:
            return 431
        if not self._within_rate((scope.get("client") or ("unknown", 0))[0]):
            return 429
        if any(len([value for name, value in given if name == only]) > 1 for only in ("host", "origin")):
            return 400
        host = headers.get("host", "")
        if self._token is None and not is_loopback(host.rpartition(":")[0] if _has_port(host) else host):
            return 403
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > _BODY:
            return 413
        # A form of another site cannot send this type without asking first, and is never allowed to.
        kind = headers.get("content-type", "").partition(";")[0].strip()
        if scope["method"] == "POST" and kind != "application/json":
            return 415
        return 0 if self._may_enter(scope, headers) else 401

    def _may_enter(self, scope: Any, headers: dict[str, str]) -> bool:
        """The page itself shows nothing of the run, and is what the token is given to.

        A frame cannot show a token. Its clip is named by a random text that only those with the token were told.
        """
        if self._token is None or not scope["path"].startswith("/api/"):
            return True
        given = headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode("latin-1", "replace"), self._token.encode())

    def _within_rate(self, address: str) -> bool:
        """Whether an address has requests left. They come back with time, up to a burst."""
        now = time.monotonic()
        left, before = self._allowance.pop(address, (float(_BURST), now))
        left = min(float(_BURST), left + (now - before) * _RATE)
        self._allowance[address] = (max(left - 1.0, 0.0), now)
        while len(self._allowance) > _ADDRESSES:
            self._allowance.popitem(last=False)
        return left >= 1.0


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]" in host)


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _refuse(send: Any, status: int) -> None:
    headers = _encoded({**HEADERS, "content-length": "0", "connection": "close"})
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
