"""Cuts tiles from slides in separate processes, so that a decoder that crashes ends one of them."""

import contextlib
import functools
import json
import multiprocessing
import multiprocessing.process
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import openslide

from gigatile.records.tile import encode_jpeg
from gigatile.stores.addresses import is_remote
from gigatile.stores.errors import StoreError
from gigatile.stores.sources import size_and_time
from gigatile.viewer.pyramids import SIDE, Pyramid, StoredPyramid

QUALITY = 80
# Largest answer of a process, in bytes.
MAX_ANSWER = 4_000_000
# Slides that a process keeps open.
OPEN = 4


class UnreadableError(Exception):
    """A tile that cannot be read; the message says why."""


@dataclass(frozen=True)
class SlideSize:
    """Size and scale of a slide.

    Attributes:
        width, height: in pixels of level 0.
        levels: of the deep-zoom pyramid; the last one is level 0 of the slide.
    """

    width: int
    height: int
    levels: int

    def shown(self) -> dict[str, int]:
        """Return what a page needs to show the slide, as JSON."""
        return {
            "width": self.width,
            "height": self.height,
            "levels": self.levels,
            "side": SIDE,
        }


class SlideProcesses:
    """A fixed number of processes that read slides."""

    def __init__(self, number: int, seconds: float) -> None:
        """Prepare the processes, which start when they are needed.

        Args:
            number: of processes.
            seconds: time limit of a tile.
        """
        self._seconds = seconds
        # The last one that became free has the slide open, and in its caches.
        self._free: queue.LifoQueue[_Process] = queue.LifoQueue()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._watchdog = _Watchdog()
        for _ in range(number):
            self._free.put(_Process(self._watchdog))

    def size(self, path: Path) -> SlideSize:
        """Return the size of a slide.

        Raises:
            UnreadableError: it cannot be opened.
        """
        width, height, levels = json.loads(self._call("size", str(path)))
        return SlideSize(int(width), int(height), int(levels))

    def tile(self, path: Path, level: int, column: int, row: int) -> bytes:
        """Return a deep-zoom tile as JPEG.

        Raises:
            UnreadableError: there is no such tile, or it cannot be read.
        """
        return self._call("tile", str(path), level, column, row)

    def stop(self) -> None:
        """End the processes."""
        with self._lock:
            self._is_stopped = True
        while not self._free.empty():
            self._free.get().kill()

    def _call(self, *request: str | int) -> bytes:
        """Send a request to a free process; replace the process if it crashes or hangs."""
        process = self._free.get()
        try:
            answer = process.ask(json.dumps(request).encode(), self._seconds)
        except (TimeoutError, EOFError, OSError) as error:
            process.kill()
            process = _Process(self._watchdog)
            reason = "took too long" if isinstance(error, TimeoutError) else "crashed its decoder"
            raise UnreadableError(f"the slide {reason}") from None
        finally:
            with self._lock:
                if self._is_stopped:
                    process.kill()
                else:
                    self._free.put(process)
        kind, content = answer[:1], answer[1:]
        if kind != _ANSWER:
            raise UnreadableError(content.decode(errors="replace"))
        return content


# The first byte of an answer. Requests are JSON and answers bytes: a slide that takes over its
# process cannot send objects to the server.
_ANSWER, _REFUSAL = b"a", b"r"


class _Watchdog:
    """Kills processes at their time limit, in a thread: a timer for each tile would cost a third.

    A process can also stop in the middle of its answer.
    """

    INTERVAL = 0.2

    def __init__(self) -> None:
        self._limits: dict[multiprocessing.process.BaseProcess, float] = {}
        self._changed = threading.Condition()
        self._is_idle = False
        threading.Thread(target=self._run, name="tile limits", daemon=True).start()

    @contextlib.contextmanager
    def limit(self, process: multiprocessing.process.BaseProcess, seconds: float) -> Iterator[None]:
        """Kill a process if the block takes longer."""
        with self._changed:
            self._limits[process] = time.monotonic() + seconds
            if self._is_idle:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                del self._limits[process]

    def _run(self) -> None:
        with self._changed:
            while True:
                self._is_idle = not self._limits
                self._changed.wait(self.INTERVAL if self._limits else None)
                for process, limit in self._limits.items():
                    if time.monotonic() >= limit:
                        process.kill()


class _Process:
    """A process that answers one request at a time."""

    def __init__(self, watchdog: _Watchdog) -> None:
        self._watchdog = watchdog
        self._process: multiprocessing.process.BaseProcess | None = None

    def ask(self, request: bytes, seconds: float) -> bytes:
        """Return the answer.

        Raises:
            TimeoutError: there is none in this time.
            EOFError, OSError: the process has ended.
        """
        if self._process is None:
            # Not by fork, which copies locks that threads of the server hold.
            context = multiprocessing.get_context("spawn")
            self._pipe, other_end = context.Pipe()
            self._scratch = tempfile.TemporaryDirectory(prefix="gigatile-")
            arguments = other_end, Path(self._scratch.name)
            self._process = context.Process(target=_answer_all, args=arguments, daemon=True)
            self._process.start()
            other_end.close()  # so that the end of the process ends the pipe
        begin = time.monotonic()
        try:
            with self._watchdog.limit(self._process, seconds):
                self._pipe.send_bytes(request)
                return self._pipe.recv_bytes(MAX_ANSWER)
        except (EOFError, OSError):
            if time.monotonic() - begin >= seconds:
                raise TimeoutError from None
            raise

    def kill(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._scratch.cleanup()
            self._process = None


def _answer_all(pipe: Connection, scratch: Path) -> None:
    """Answer requests until the server ends; `scratch`: for partial copies of slides in stores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    while True:
        try:
            kind, *arguments = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            content = (_tile if kind == "tile" else _size)(scratch, *arguments)
            pipe.send_bytes(_ANSWER + content)
        except UnreadableError as error:
            pipe.send_bytes(_REFUSAL + str(error).encode())


@functools.lru_cache(maxsize=OPEN)
def _open(path: Path, modified: int, scratch: Path) -> Pyramid:
    if is_remote(path):
        return StoredPyramid(path, scratch)
    return Pyramid(openslide.OpenSlide(path))


def _pyramid(path: Path, scratch: Path) -> Pyramid:
    try:
        return _open(path, size_and_time(path)[1], scratch)
    except StoreError as error:
        raise _of_store(error) from None
    except (openslide.OpenSlideError, OSError):
        raise UnreadableError("the slide cannot be opened") from None


def _of_store(error: StoreError) -> UnreadableError:
    _open.cache_clear()  # perhaps another version
    return UnreadableError(f"the slide cannot be read from its store: {error.strerror}")


def _size(scratch: Path, path: str) -> bytes:
    pyramid = _pyramid(Path(path), scratch)
    return json.dumps([*pyramid.level_dimensions[-1], pyramid.level_count]).encode()


def _tile(scratch: Path, path: str, level: int, column: int, row: int) -> bytes:
    pyramid = _pyramid(Path(path), scratch)
    if not 0 <= level < pyramid.level_count:
        raise UnreadableError("no such level")
    columns, rows = pyramid.level_tiles[level]
    if not (0 <= column < columns and 0 <= row < rows):
        raise UnreadableError("no such tile")
    try:
        pixels = np.asarray(pyramid.get_tile(level, (column, row)))
    except StoreError as error:
        raise _of_store(error) from None
    except openslide.OpenSlideError:
        # OpenSlide refuses all further reads of a slide after an error.
        _open.cache_clear()
        raise UnreadableError("this part of the slide is damaged") from None
    return encode_jpeg(np.ascontiguousarray(pixels), QUALITY)
