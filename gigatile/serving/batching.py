"""Batches of tiles from requests that arrive together."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import numpy as np

from gigatile.serving.errors import RequestError

# Scores (n, classes) float32 of tiles (n, size, size, 3) uint8.
Score = Callable[[np.ndarray], np.ndarray]


THREADS = 2


@dataclass
class _Waiting:
    """Tiles of a request that wait for their scores.

    Attributes:
        tiles: (n, size, size, 3) uint8.
        until: when it is scored, even if its batch is not full; of `time.monotonic`.
        done: receives the scores, (n, classes) float32.
        begun: number of tiles that are in a batch.
        parts: the scores so far, by the position of their first tile.
    """

    tiles: np.ndarray
    until: float
    done: "Future[np.ndarray]" = field(default_factory=Future)
    begun: int = 0
    parts: dict[int, np.ndarray] = field(default_factory=dict)


class Batcher:
    """Scores tiles of many requests together.

    Two threads do, so that one prepares a batch while the other calls the model. A batch has the
    tiles that wait, in the order of their arrival; a large request is divided.
    """

    def __init__(
        self,
        score: Score,
        max_batch: int,
        wait_seconds: float,
        max_queue: int,
        observe: Callable[[int], None] = lambda tiles: None,
    ) -> None:
        """Prepare the queue; `start` starts the threads.

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
        self._threads = [
            threading.Thread(target=self._run, name=f"batches-{number}", daemon=True)
            for number in range(THREADS)
        ]

    @property
    def waiting(self) -> int:
        """The number of tiles that are not in a batch yet."""
        return self._tiles

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Score what waits, and stop the threads."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def submit(self, tiles: np.ndarray) -> "Future[np.ndarray]":
        """Add tiles to the queue.

        Args:
            tiles: (n, size, size, 3) uint8.

        Returns:
            Receives the scores: (n, classes) float32.

        Raises:
            RequestError: the queue is full, or the server stops.
        """
        waiting = _Waiting(tiles, time.monotonic() + self._wait)
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
                    # The client left, or the other thread failed, too.
                    with contextlib.suppress(InvalidStateError):
                        waiting.done.set_exception(error)

    def _next_batch(self) -> list[tuple[_Waiting, slice]]:
        """Wait for tiles; return the requests of a batch, each with its tiles. Empty: stop."""
        with self._changed:
            while True:
                while not self._queue and not self._is_stopping:
                    self._changed.wait()
                while self._queue and self._tiles < self._max_batch and not self._is_stopping:
                    remaining = self._queue[0].until - time.monotonic()
                    if remaining <= 0:
                        break
                    self._changed.wait(remaining)
                requests = self._take()
                if self._queue:
                    self._changed.notify()
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
        for (waiting, chosen), part in zip(requests, parts, strict=True):
            whole = self._add(waiting, chosen.start, scores[position : position + len(part)])
            if whole and waiting.done.set_running_or_notify_cancel():
                waiting.done.set_result(np.concatenate(whole))
            position += len(part)

    def _add(self, waiting: _Waiting, first: int, scores: np.ndarray) -> list[np.ndarray]:
        """Add scores to those of a request; return all of them, in order, once they are whole."""
        with self._changed:  # the other thread may score the rest of the request
            waiting.parts[first] = scores
            if sum(map(len, waiting.parts.values())) < len(waiting.tiles):
                return []
            return [waiting.parts[position] for position in sorted(waiting.parts)]
