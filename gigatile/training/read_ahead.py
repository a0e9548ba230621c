"""Fetch the records of later batches from a store while the model uses the present ones."""

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from gigatile.errors import UserError
from gigatile.training.sample_order import Samples

# Batches that are fetched together, and how many the last of them may be ahead of the model.
TOGETHER, AHEAD = 16, 64


@runtime_checkable
class FetchedSource(Protocol):
    """A source of samples with records that may be in a store; see `batches.SampleSource`."""

    @property
    def in_store(self) -> bool:
        """Whether they are in a store."""

    def fetch(self, samples: Samples) -> None:
        """Fetch the records of samples, all at the same time, so that `fill` is fast.

        Raises:
            UserError: the store does not answer or denies access, or a shard was changed.
        """


class ReadAhead:
    """A thread that fetches the records of batches in their order.

    It starts with single batches, so that the first one comes soon, and then fetches more and more
    of them together: records that are near each other in a shard are read with one request.
    """

    def __init__(
        self, source: FetchedSource, samples_of: Callable[[range], Samples], steps: range
    ) -> None:
        """Start the thread.

        Args:
            source: fetches records.
            samples_of: returns the samples of consecutive batches.
            steps: the batches, by their number in the epoch.
        """
        self._source, self._samples_of, self._steps = source, samples_of, steps
        self._begun, self._closed = 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin_batch(self) -> None:
        """Report that the model gets the next batch."""
        with self._changed:
            self._begun += 1
            self._changed.notify()

    def close(self) -> None:
        """End the thread after its present requests, without waiting for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        first, together = 0, 1
        while first < len(self._steps):
            last = min(first + together, len(self._steps))
            with self._changed:
                while not self._closed and last > self._begun + AHEAD:
                    self._changed.wait()
                if self._closed:
                    return
            # After an error, the thread that needs the records tries again, and raises its own. A
            # RuntimeError: the reader was closed meanwhile.
            with contextlib.suppress(UserError, OSError, RuntimeError):
                self._source.fetch(self._samples_of(self._steps[first:last]))
            first, together = last, min(2 * together, TOGETHER)
