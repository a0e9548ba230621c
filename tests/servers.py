"""Real servers: the command `gigatile serve` in separate processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest


class Server:
    """A running server.

    Attributes:
        process: of the command.
        address: such as `http://127.0.0.1:8501`.
        log: its standard error.
        client: sends requests to it.
    """

    def __init__(self, process: subprocess.Popen, address: str, log: Path) -> None:
        self.process, self.address, self.log = process, address, log
        self.client = httpx.Client(base_url=address, timeout=60)

    def lines(self) -> str:
        """Return what it has written to standard error."""
        return self.log.read_text()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all series that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        text = self.client.get("/metrics").text
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if all(label in line for label in wanted)
        )


@contextmanager
def running(folder: Path, *arguments: object) -> Iterator[Server]:
    """Start a server on a free port, and end it.

    Args:
        folder: for its log.
        arguments: of `gigatile serve`.
    """
    log = folder / "server.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "gigatile", "serve", *map(str, arguments), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
    assert process.stdout is not None
    with process.stdout:
        try:
            for line in process.stdout:
                if line.startswith("all requests: "):
                    break
            else:
                pytest.fail(log.read_text())
            server = Server(process, line.split()[-1].removesuffix("/docs"), log)
            with server.client:
                yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(60)
