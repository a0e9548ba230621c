"""The exact gradient of a loss of whole slides, in memory that does not grow with the slides.

The first pass computes the embeddings of each window, and pools them. Then the gradient of the loss
with respect to the pooled embedding is known. In the second pass, each window runs again under a
tape; windows without any gradient are left out. In memory are the activations of one window, and
the state of the aggregator.

All ranks share all slides: their windows are dealt to the ranks in turn.
"""

import contextlib
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.whole_slides.aggregators import Aggregator
from gigatile.whole_slides.windows import Window

# Contents of windows that are kept from the first pass for the second, so that small slides are
# decoded once.
KEPT_BYTES = 16 << 20
# Windows that are read while the encoder uses another one, for each reading thread.
AHEAD_PER_THREAD = 1

# The pixels of a window, its tissue, and the offset of its positions.
Content = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Picture:
    """A slide that is read window by window.

    Attributes:
        windows: those with tissue.
        tissue: (rows, columns) bool, the positions of the whole picture that are pooled.
        read_pixels: returns the pixels of a window, (height, width, channels). Called from several
            threads.
    """

    windows: Sequence[Window]
    tissue: np.ndarray
    read_pixels: Callable[[Window], np.ndarray]

    def tissue_in(self, window: Window) -> np.ndarray:
        """Return the positions of a window that are pooled, (rows, columns) bool."""
        return self.tissue[slice(*window.rows.outputs), slice(*window.columns.outputs)]


class Sharing(Protocol):
    """The ranks that share slides; `gigatile.training.ranks.Ranks` is one."""

    @property
    def rank(self) -> int:
        """Number of this process."""

    @property
    def size(self) -> int:
        """Number of processes."""

    @property
    def threads(self) -> int:
        """Threads to read with."""

    def gather(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the arrays of all ranks, which have equal shapes: (size, …)."""

    def report_progress(self, where: str) -> None:
        """Report that this rank made progress."""


class Alone:
    """A single process."""

    rank, size, threads = 0, 1, 1

    def gather(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the array, (1, …)."""
        return values[None]

    def report_progress(self, where: str) -> None:
        """Do nothing."""


class TwoPasses:
    """An encoder and an aggregator over the windows of slides."""

    def __init__(
        self,
        encoder: keras.Model,
        aggregator: Aggregator,
        sharing: Sharing | None = None,
        pixels: tf.DType = tf.uint8,
    ) -> None:
        """Compile both passes.

        Args:
            encoder: from pictures (n, height, width, channels) to embeddings
                (n, rows, columns, channels).
            aggregator: pools the embeddings.
            sharing: the ranks; None: this process alone.
            pixels: the type of the pixels.
        """
        self._encoder, self._aggregator = encoder, aggregator
        self._sharing = Alone() if sharing is None else sharing
        self._channels = encoder.output_shape[-1]
        self._kept: dict[tuple[int, int], Content] = {}
        self.variables = [*encoder.trainable_variables, *aggregator.variables]
        # Heights and widths are not part of the signature: windows at the border are smaller.
        window = [
            tf.TensorSpec((None, None, encoder.input_shape[-1]), pixels),
            tf.TensorSpec((None, None), tf.bool),
            tf.TensorSpec((2,), tf.int32),
            tf.TensorSpec((), tf.int32),
            tf.TensorSpec((aggregator.rows, self._channels), tf.float64),
        ]
        self._pool = tf.function(self._pool_window, input_signature=window)
        gradient = tf.TensorSpec((self._channels,), keras.config.floatx())
        self._differentiate = tf.function(
            self._differentiate_window, input_signature=[*window, gradient]
        )
        self.embed = tf.function(self._embed, input_signature=window[:3])

    def pool(self, pictures: Sequence[Picture]) -> list[np.ndarray]:
        """Return the aggregator's state of each picture: the first pass.

        All ranks must call it with the same pictures.
        """
        self._kept.clear()
        states = [self._aggregator.start(self._channels) for _ in pictures]
        every = [
            (number, window)
            for number, picture in enumerate(pictures)
            for window in range(len(picture.windows))
        ]
        for number, window, content in self._read(pictures, every):
            with _window_fits(content[0]):
                states[number] = self._pool(*content, window, states[number])
        gathered = self._sharing.gather(np.stack([np.asarray(s) for s in states]), "states")
        return [self._aggregator.merge(gathered[:, number]) for number in range(len(pictures))]

    def gradients(
        self,
        pictures: Sequence[Picture],
        states: Sequence[np.ndarray],
        gradients: np.ndarray,
    ) -> tuple[list[tf.Tensor], int]:
        """Return the gradient of each of `variables`, of this rank's windows: the second pass.

        The gradient of the loss is the sum over all ranks.

        Args:
            pictures: as in `pool`.
            states: from `pool`.
            gradients: of the loss with respect to the pooled embeddings, (pictures, channels).

        Returns:
            The gradients, and the number of windows of all ranks that ran again.
        """
        again = []
        for number, (picture, state, gradient) in enumerate(
            zip(pictures, states, gradients, strict=True)
        ):
            needed = self._aggregator.windows_with_gradient(state, gradient)
            if not np.any(gradient):
                needed = set()
            windows = range(len(picture.windows)) if needed is None else sorted(needed)
            again += [(number, window) for window in windows]
        totals = [tf.zeros_like(variable.value) for variable in self.variables]
        for number, window, content in self._read(pictures, again, keep=False):
            with _window_fits(content[0]):
                of_window = self._differentiate(*content, window, states[number], gradients[number])
            totals = [total + part for total, part in zip(totals, of_window, strict=True)]
        self._kept.clear()
        return totals, len(again)

    def _read(
        self, pictures: Sequence[Picture], windows: Sequence[tuple[int, int]], keep: bool = True
    ) -> Iterator[tuple[int, int, Content]]:
        """Yield this rank's share of the windows, with their content; read ahead by threads.

        Args:
            pictures: the slides.
            windows: pairs of the numbers of picture and window.
            keep: whether to keep the first `KEPT_BYTES` for the next call.
        """
        sharing = self._sharing
        areas = [pictures[number].windows[window].area for number, window in windows]
        own = [windows[index] for index in deal(areas, sharing.size)[sharing.rank]]
        for done, (number, window, content) in enumerate(
            read_ahead(pictures, own, sharing.threads, self._kept), 1
        ):
            if keep and self._kept_bytes() + content[0].nbytes <= KEPT_BYTES:
                self._kept[number, window] = content
            yield number, window, content
            sharing.report_progress(f"after window {done} of {len(own)} of a step")

    def _kept_bytes(self) -> int:
        return sum(pixels.nbytes for pixels, *_ in self._kept.values())

    def _embed(self, pixels: tf.Tensor, tissue: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        """Return the embeddings of the positions of a window with tissue, (n, channels)."""
        outputs = self._encoder(pixels[None], training=True)[0]
        rows, columns = tf.unstack(tf.shape(tissue))
        exact = outputs[offset[0] : offset[0] + rows, offset[1] : offset[1] + columns]
        return tf.cast(tf.boolean_mask(exact, tissue), keras.config.floatx())

    def _pool_window(
        self,
        pixels: tf.Tensor,
        tissue: tf.Tensor,
        offset: tf.Tensor,
        window: tf.Tensor,
        state: tf.Tensor,
    ) -> tf.Tensor:
        return self._aggregator.add(state, self._embed(pixels, tissue, offset), window)

    def _differentiate_window(
        self,
        pixels: tf.Tensor,
        tissue: tf.Tensor,
        offset: tf.Tensor,
        window: tf.Tensor,
        state: tf.Tensor,
        gradient: tf.Tensor,
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            embeddings = self._embed(pixels, tissue, offset)
            surrogate = self._aggregator.surrogate(embeddings, window, state, gradient)
        return tape.gradient(
            surrogate,
            [variable.value for variable in self.variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )


@contextlib.contextmanager
def _window_fits(pixels: np.ndarray) -> Iterator[None]:
    """Turn an error of too little memory into a message that says which setting to change."""
    try:
        yield
    except tf.errors.ResourceExhaustedError:
        height, width, _ = pixels.shape
        raise UserError(
            f"a window of {width}×{height} px does not fit into the memory of the device; set "
            f"whole_slides.window to {max(height, width) // 2}"
        ) from None


def deal(areas: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the windows of each rank, so that all ranks get about the same area.

    The largest window that is left goes to the rank with the smallest area: Graham 1969,
    https://doi.org/10.1137/0117039.

    Args:
        areas: of the windows.
        ranks: number of ranks.
    """
    loads = [(0, rank) for rank in range(ranks)]
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for window in sorted(range(len(areas)), key=lambda index: -areas[index]):
        load, rank = heapq.heappop(loads)
        dealt[rank].append(window)
        heapq.heappush(loads, (load + areas[window], rank))
    return [sorted(windows) for windows in dealt]


def read_ahead(
    pictures: Sequence[Picture],
    windows: Sequence[tuple[int, int]],
    threads: int,
    kept: Mapping[tuple[int, int], Content] = MappingProxyType({}),
) -> Iterator[tuple[int, int, Content]]:
    """Yield windows in order with their content: pixels, tissue, and the offset of its positions.

    Args:
        pictures: the slides.
        windows: pairs of the numbers of picture and window.
        threads: to read with.
        kept: contents that are in memory already.
    """

    def read(number: int, index: int) -> Content:
        if (number, index) in kept:
            return kept[number, index]
        window = pictures[number].windows[index]
        pixels, tissue = pictures[number].read_pixels(window), pictures[number].tissue_in(window)
        offset = np.array([window.rows.offset, window.columns.offset], np.int32)
        return pixels, tissue, offset

    with ThreadPoolExecutor(threads) as pool:
        reading = []
        try:
            for pair in windows:
                reading.append((pair, pool.submit(read, *pair)))
                if len(reading) > AHEAD_PER_THREAD * threads:
                    (number, index), future = reading.pop(0)
                    yield number, index, future.result()
            while reading:
                (number, index), future = reading.pop(0)
                yield number, index, future.result()
        finally:
            for _, future in reading:
                future.cancel()
