"""What every request passes before its route: who may ask, limits of size and time, the log."""

import asyncio
import hmac
import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gigatile.serving.errors import RequestError
from gigatile.serving.metrics import ServerMetrics
from gigatile.serving.settings import LOOPBACK, ServerSettings

# Routes without a token: a supervisor asks whether the server runs.
OPEN = ("/healthz", "/readyz")
# The route of slides.
UPLOADS = "/v1/slides"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_ENCODED_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class Guard:
    """Middleware around the whole application.

    A request is refused with a JSON error if it has no token, comes from the page of another site,
    or is too large or too slow. The log has a line of JSON for each request: the address of its
    route, never that of a slide, and nothing of its content.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: ServerMetrics) -> None:
        """Wrap an application."""
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection; of ASGI's types, only HTTP has requests."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.monotonic(), 500
        is_begun = False
        body = _Body(self._settings, receive, is_upload(scope))

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_begun
            if message["type"] == "http.response.start":
                status, is_begun = message["status"], True
                known = {name.lower() for name, _ in message["headers"]}
                if body.is_left(headers):
                    # Otherwise the connection would wait for the rest.
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
                message["headers"] = [
                    *message["headers"],
                    *(header for header in _ENCODED_HEADERS if header[0] not in known),
                ]
            await send(message)

        self._metrics.begin()
        headers = Headers(scope=scope)
        try:
            self._check_sender(scope, headers)
            body.check_length(headers)
            await self._app(scope, body.receive, send_with_headers)
        except RequestError as error:
            if is_begun:
                raise
            await send_error(send_with_headers, error)
        finally:
            seconds = time.monotonic() - start
            method = scope["method"] if scope["method"] in METHODS else "other"
            route = route_of(scope)
            self._metrics.end(method, route, status, seconds)
            _log(method=method, route=route, status=status, ms=round(1000 * seconds, 1))

    def _check_sender(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Refuse requests without the token, and those that a page of another site sends."""
        host = headers.get("host", "")
        if self._settings.token is None and _name_of(host) not in LOOPBACK:
            # A page of another site whose name was made to lead here (DNS rebinding).
            raise RequestError(421, "the header Host must be that of this machine")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise RequestError(403, "requests of pages of other sites are refused")
        if self._settings.token is not None and scope["path"] not in OPEN:
            kind, _, given = headers.get("authorization", "").partition(" ")
            expected = self._settings.token.encode()
            is_right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), expected)
            if kind.lower() != "bearer" or not is_right:
                raise RequestError(401, "the header Authorization must be: Bearer TOKEN")


class _Body:
    """The body of a request, which must not be too large or too slow.

    That of an upload may take any time, but must not stall.
    """

    def __init__(self, settings: ServerSettings, receive: Receive, is_upload: bool) -> None:
        self._settings, self._receive, self._is_upload = settings, receive, is_upload
        self._most = settings.max_upload_bytes if is_upload else settings.max_body_bytes
        self._until = time.monotonic() + settings.body_seconds
        self._received, self._is_whole = 0, False

    def check_length(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that announces too many bytes."""
        length, most = headers.get("content-length", "0"), self._most
        if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > most):
            raise too_large(most)

    def is_left(self, headers: Mapping[str, str]) -> bool:
        """Return whether a part of the body has not been received."""
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        return has_body and not self._is_whole

    async def receive(self) -> Message:
        """Receive the next part."""
        if self._is_whole:
            return await self._receive()  # waits for the end of the connection
        try:
            async with asyncio.timeout(max(0, self._until - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(
                408, f"the body did not arrive within {self._settings.body_seconds:g} s"
            ) from None
        self._received += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._received > self._most:
            self._is_whole = False
            raise too_large(self._most)
        if self._is_upload:
            self._until = time.monotonic() + self._settings.body_seconds
        return message


def is_upload(scope: Scope) -> bool:
    """Return whether the body of a request is a slide."""
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return scope["path"] == UPLOADS and kind != "application/json"


def too_large(most: int) -> RequestError:
    """Return the error for a body of more bytes than accepted."""
    return RequestError(413, f"the body is too large; at most {most:,} bytes are accepted")


async def send_error(send: Send, error: RequestError) -> None:
    """Send a JSON error as TensorFlow Serving does: {"error": …}."""
    body = json.dumps({"error": error.message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def route_of(scope: Mapping[str, Any]) -> str:
    """Return the address of the route of a request, such as `/v1/models/{name}`."""
    route = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) else "none"


def _name_of(host: str) -> str:
    """Return a host without its port: of `[::1]:80`, `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _log(**values: Any) -> None:
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}
    print(json.dumps(line), file=sys.stderr, flush=True)
