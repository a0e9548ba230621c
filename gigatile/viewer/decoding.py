"""Cuts tiles from slides in separate processes, so that a decoder that crashes ends one of them."""

import functools
import multiprocessing
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import openslide
from openslide.deepzoom import DeepZoomGenerator

from gigatile.records.tile import encode_jpeg

T = TypeVar("T")
# Side of a deep-zoom tile in pixels; tiles do not overlap.
SIDE = 256
QUALITY = 80
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
        self._free: queue.Queue[ProcessPoolExecutor] = queue.Queue()
        self._lock = threading.Lock()
        self._is_stopped = False
        for _ in range(number):
            self._free.put(_process())

    def size(self, path: Path) -> SlideSize:
        """Return the size of a slide.

        Raises:
            UnreadableError: it cannot be opened.
        """
        return self._call(_size, str(path))

    def tile(self, path: Path, level: int, column: int, row: int) -> bytes:
        """Return a deep-zoom tile as JPEG.

        Raises:
            UnreadableError: there is no such tile, or it cannot be read.
        """
        return self._call(_tile, str(path), level, column, row)

    def stop(self) -> None:
        """End the processes."""
        with self._lock:
            self._is_stopped = True
        while not self._free.empty():
            _kill(self._free.get())

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a free process; replace the process if it crashes or hangs."""
        process = self._free.get()
        try:
            return process.submit(function, *arguments).result(self._seconds)
        except (BrokenProcessPool, TimeoutError) as error:
            _kill(process)
            process = _process()
            reason = "took too long" if isinstance(error, TimeoutError) else "crashed its decoder"
            raise UnreadableError(f"the slide {reason}") from None
        finally:
            with self._lock:
                if self._is_stopped:
                    _kill(process)
                else:
                    self._free.put(process)


def _process() -> ProcessPoolExecutor:
    # Not by fork, which copies locks that threads of the server hold.
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


@functools.lru_cache(maxsize=OPEN)
def _open(path: str, modified: int) -> DeepZoomGenerator:
    slide = openslide.OpenSlide(path)
    return DeepZoomGenerator(slide, tile_size=SIDE, overlap=0, limit_bounds=False)


def _pyramid(path: str) -> DeepZoomGenerator:
    try:
        return _open(path, Path(path).stat().st_mtime_ns)
    except (openslide.OpenSlideError, OSError):
        raise UnreadableError("the slide cannot be opened") from None


def _size(path: str) -> SlideSize:
    pyramid = _pyramid(path)
    width, height = pyramid.level_dimensions[-1]
    return SlideSize(width, height, pyramid.level_count)


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
