"""Cuts tiles from slides in separate processes, so that a decoder that crashes ends one of them."""

import functools
import json
import multiprocessing
import multiprocessing.process
import queue
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import openslide
from openslide.deepzoom import DeepZoomGenerator

from gigatile.records.tile import encode_jpeg

# Side of a deep-zoom tile in pixels; tiles do not overlap.
SIDE = 256
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


class SlideProcesses:
    """A fixed number of processes that read slides."""

    def __init__(self, number: int, seconds: float) -> None:
        """Prepare the processes, which start when they are needed.

        Args:
            number: of processes.
            seconds: time limit of a tile.
        """
        self._seconds = seconds
        self._free: queue.Queue[_Process] = queue.Queue()
        self._lock = threading.Lock()
        self._is_stopped = False
        for _ in range(number):
            self._free.put(_Process())

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
            process = _Process()
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


class _Process:
    """A process that answers one request at a time."""

    def __init__(self) -> None:
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
            self._process = context.Process(target=_answer_all, args=(other_end,), daemon=True)
            self._process.start()
            other_end.close()  # so that the end of the process ends the pipe
        # The whole exchange has a limit: a process can also stop in the middle of its answer.
        limit = threading.Timer(seconds, self._process.kill)
        limit.start()
        begin = time.monotonic()
        try:
            self._pipe.send_bytes(request)
            return self._pipe.recv_bytes(MAX_ANSWER)
        except (EOFError, OSError):
            if time.monotonic() - begin >= seconds:
                raise TimeoutError from None
            raise
        finally:
            limit.cancel()

    def kill(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _answer_all(pipe: Connection) -> None:
    """Answer requests until the server ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    while True:
        try:
            kind, *arguments = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            content = _tile(*arguments) if kind == "tile" else _size(*arguments)
            pipe.send_bytes(_ANSWER + content)
        except UnreadableError as error:
            pipe.send_bytes(_REFUSAL + str(error).encode())


@functools.lru_cache(maxsize=OPEN)
def _open(path: str, modified: int) -> DeepZoomGenerator:
    slide = openslide.OpenSlide(path)
    return DeepZoomGenerator(slide, tile_size=SIDE, overlap=0, limit_bounds=False)


def _pyramid(path: str) -> DeepZoomGenerator:
    try:
        return _open(path, Path(path).stat().st_mtime_ns)
    except (openslide.OpenSlideError, OSError):
        raise UnreadableError("the slide cannot be opened") from None


def _size(path: str) -> bytes:
    pyramid = _pyramid(path)
    return json.dumps([*pyramid.level_dimensions[-1], pyramid.level_count]).encode()


def _tile(path: str, level: int, column: int, row: int) -> bytes:
    pyramid = _pyramid(path)
    if not 0 <= level < pyramid.level_count:
        raise UnreadableError("no such level")
    columns, rows = pyramid.level_tiles[level]
    if not (0 <= column < columns and 0 <= row < rows):
        raise UnreadableError("no such tile")
    try:
        pixels = np.asarray(pyramid.get_tile(level, (column, row)).convert("RGB"))
    except openslide.OpenSlideError:
        # OpenSlide refuses all further reads of a slide after an error.
        _open.cache_clear()
        raise UnreadableError("this part of the slide is damaged") from None
    return encode_jpeg(np.ascontiguousarray(pixels), QUALITY)
