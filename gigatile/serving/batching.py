"""Batches of tiles from requests that arrive together."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from gigatile.serving.errors import RequestError

# Scores (n, classes) float32 of tiles (n, size, size, 3) uint8.
Score = Callable[[np.ndarray], np.ndarray]


@dataclass
class _Waiting:
    """Tiles of a request that wait for their scores.

    Attributes:
        tiles: (n, size, size, 3) uint8.
        done: receives the scores, (n, classes) float32.
        begun: number of tiles that are in a batch.
        parts: the scores so far.
    """

    tiles: np.ndarray
    done: "Future[np.ndarray]" = field(default_factory=Future)
    begun: int = 0
    parts: list[np.ndarray] = field(default_factory=list)


class Batcher:
    """Scores tiles of many requests together, in one thread.

    A batch has the tiles that wait, in the order of their arrival; a large request is divided.
    """

    def __init__(
        self,
        score: Score,
        max_batch: int,
        wait_seconds: float,
        max_queue: int,
        observe: Callable[[int], None] = lambda tiles: None,
    ) -> None:
        """Prepare the queue; `start` starts the thread.

        Args:
            score: the model.
            max_batch: most tiles of a batch.
            wait_seconds: time for which the first tile of a batch waits for others.
            max_queue: most tiles that wait.
            observe: called with the number of tiles of each batch.
        """
        self._score, self._max_batch = score, max_batch
        self._wait, self._max_queue = wait_seconds, max_queue
        self._observe = observe
        self._queue: deque[_Waiting] = deque()
        self._tiles = 0
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    @property
    def waiting(self) -> int:
        """The number of tiles that are not in a batch yet."""
        return self._tiles

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Score what waits, and stop the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, tiles: np.ndarray) -> "Future[np.ndarray]":
        """Add tiles to the queue.

        Args:
            tiles: (n, size, size, 3) uint8.

        Returns:
            Receives the scores: (n, classes) float32.

        Raises:
            RequestError: the queue is full, or the server stops.
        """
        waiting = _Waiting(tiles)
        with self._changed:
            if self._is_stopping:
                raise RequestError(503, "the server is shutting down", retry_after=5)
            if self._tiles and self._tiles + len(tiles) > self._max_queue:
                raise RequestError(
                    503, f"the queue is full: {self._tiles:,} tiles wait", retry_after=1
                )
            self._queue.append(waiting)
            self._tiles += len(tiles)
            self._changed.notify()
        return waiting.done

    def _run(self) -> None:
        while requests := self._next_batch():
            try:
                self._score_batch(requests)
            except Exception as error:  # of the model: the requests fail, the server goes on
                for waiting, _ in requests:
                    if not waiting.done.done():
                        waiting.done.set_exception(error)

    def _next_batch(self) -> list[tuple[_Waiting, slice]]:
        """Wait for tiles; return the requests of a batch, each with its tiles. Empty: stop."""
        with self._changed:
            while True:
                while not self._queue and not self._is_stopping:
                    self._changed.wait()
                until = time.monotonic() + self._wait
                while self._tiles < self._max_batch and not self._is_stopping:
                    remaining = until - time.monotonic()
                    if remaining <= 0:
                        break
                    self._changed.wait(remaining)
                requests = self._take()
                if requests or self._is_stopping:
                    return requests

    def _take(self) -> list[tuple[_Waiting, slice]]:
        """Remove the tiles of a batch from the queue, and requests that were given up."""
        requests: list[tuple[_Waiting, slice]] = []
        space = self._max_batch
        while self._queue and space:
            first = self._queue[0]
            left = len(first.tiles) - first.begun
            if first.done.done():  # cancelled, or failed
                self._tiles -= left
                self._queue.popleft()
                continue
            taken = min(space, left)
            requests.append((first, slice(first.begun, first.begun + taken)))
            first.begun += taken
            self._tiles -= taken
            space -= taken
            if taken == left:
                self._queue.popleft()
        return requests

    def _score_batch(self, requests: Sequence[tuple[_Waiting, slice]]) -> None:
        parts = [waiting.tiles[chosen] for waiting, chosen in requests]
        number = sum(map(len, parts))
        scores = self._score(parts[0] if len(parts) == 1 else np.concatenate(parts))
        self._observe(number)
        position = 0
        for (waiting, _), part in zip(requests, parts, strict=True):
            waiting.parts.append(scores[position : position + len(part)])
            position += len(part)
            is_whole = sum(map(len, waiting.parts)) == len(waiting.tiles)
            if is_whole and waiting.done.set_running_or_notify_cancel():
                waiting.done.set_result(np.concatenate(waiting.parts))
