"""Runs the server: until SIGTERM, then without new requests until those in flight are answered."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gigatile.errors import UserError
from gigatile.serving.settings import ServerSettings


class _Server(uvicorn.Server):
    """Stops on SIGTERM and SIGINT, and exits with status 0."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_stop()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal again at the end, so a drained server would seem killed.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def _limited_protocol(header_seconds: float) -> type[H11Protocol]:
    """Return a protocol that closes connections when the headers of a request take too long."""

    class LimitedProtocol(H11Protocol):
        _limit: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_headers()

        def data_received(self, data: bytes) -> None:
            if self._is_idle() and self._limit is None:
                self._await_headers()
            super().data_received(data)
            if not self._is_idle():
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _is_idle(self) -> bool:
            """Whether there is no request whose headers have arrived."""
            return self.cycle is None or self.cycle.response_complete

        def _await_headers(self) -> None:
            self._limit = self.loop.call_later(header_seconds, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

    return LimitedProtocol


def listen(settings: ServerSettings) -> socket.socket:
    """Return a socket with the address of the server.

    Raises:
        UserError: the address is in use, or not one of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        # asyncio sets TCP_NODELAY only if the protocol is given; without it, an answer takes 40 ms.
        opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((settings.host, settings.port))
    except OSError as error:
        raise UserError(
            f"--host {settings.host} --port {settings.port}: {error.strerror or error}"
        ) from None
    opened.set_inheritable(True)
    return opened


def serve(
    app: ASGIApp,
    settings: ServerSettings,
    opened: socket.socket,
    on_start: Callable[[str], None],
    on_stop: Callable[[], None],
) -> None:
    """Run the server until SIGTERM or SIGINT.

    Args:
        app: the application.
        settings: of the server.
        opened: from `listen`.
        on_start: called with the address when connections are accepted.
        on_stop: called on the signal, before the requests in flight are awaited.
    """
    host, port = opened.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    config = uvicorn.Config(
        app,
        http=_limited_protocol(settings.header_seconds),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=settings.drain_seconds,
        h11_max_incomplete_event_size=16_384,
        backlog=1024,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    server = _Server(config, on_stop)

    async def run() -> None:
        task = asyncio.create_task(server.serve(sockets=[opened]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if server.started:
            on_start(address)
        await task

    asyncio.run(run())
