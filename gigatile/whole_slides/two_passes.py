"""The exact gradient of a loss of whole slides, in memory that does not grow with the slides.

The first pass computes the embeddings of each window, and pools them. Then the gradient of the loss
with respect to the pooled embedding is known. In the second pass, each window runs again under a
tape; windows without any gradient are left out. In memory are the activations of one window, and
the state of the aggregator. The last windows of the first pass, as many as one window's memory
allows, keep their activations, so that they run once: a slide of one window is plain
backpropagation.

All ranks share all slides: their windows are dealt to the ranks in turn.
"""

import contextlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.whole_slides.aggregators import Aggregator
from gigatile.whole_slides.windows import Window

# Windows that are read while the encoder uses another one, for each reading thread.
AHEAD_PER_THREAD = 1

# The pixels of a window, its tissue, and the offset of its positions.
Content = tuple[np.ndarray, np.ndarray, np.ndarray]
# The embeddings of a window, with the activations from which they were computed.
Activations = tuple[tf.GradientTape, tf.Tensor]


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
        window: int = 0,
    ) -> None:
        """Compile both passes.

        Args:
            encoder: from pictures (n, height, width, channels) to embeddings
                (n, rows, columns, channels).
            aggregator: pools the embeddings.
            sharing: the ranks; None: this process alone.
            pixels: the type of the pixels.
            window: side of the window whose activations fit into memory. `pool` keeps those of
                small windows until `gradients`; 0: of none.
        """
        self._encoder, self._aggregator = encoder, aggregator
        self._sharing = Alone() if sharing is None else sharing
        self._channels = encoder.output_shape[-1]
        self._area = window**2
        self._activations: dict[tuple[int, int], Activations] = {}
        self.variables = [*encoder.trainable_variables, *aggregator.variables]
        # Heights and widths are not part of the signature: windows at the border are smaller.
        content = [
            tf.TensorSpec((None, None, encoder.input_shape[-1]), pixels),
            tf.TensorSpec((None, None), tf.bool),
            tf.TensorSpec((2,), tf.int32),
        ]
        number = tf.TensorSpec((), tf.int32)
        embeddings = tf.TensorSpec((None, self._channels), keras.config.floatx())
        state = tf.TensorSpec((aggregator.rows, self._channels), tf.float64)
        gradient = tf.TensorSpec((self._channels,), keras.config.floatx())
        self.embed = tf.function(self._embed, input_signature=content)
        self._add = tf.function(aggregator.add, input_signature=[state, embeddings, number])
        self._differentiate = tf.function(
            self._differentiate_embeddings, input_signature=[embeddings, number, state, gradient]
        )

    def pool(self, pictures: Sequence[Picture]) -> list[np.ndarray]:
        """Return the aggregator's state of each picture: the first pass.

        All ranks must call it with the same pictures.
        """
        self._activations.clear()
        states = [self._aggregator.start(self._channels) for _ in pictures]
        every = [
            (number, window)
            for number, picture in enumerate(pictures)
            for window in range(len(picture.windows))
        ]
        own = self._share(pictures, every)
        if not all(picture.windows for picture in pictures):
            raise UserError(
                "no position of the encoder lies on a stored tile of a slide: its layers need "
                "`same` padding"
            )
        last = self._last_windows(pictures, own)
        for pair, content in self._read(pictures, own):
            number, window = pair
            with _window_fits(pictures[number].windows[window]):
                if pair in last:
                    self._activations[pair] = self._embed_under_tape(content)
                    embeddings = self._activations[pair][1]
                else:
                    embeddings = self.embed(*content)
                states[number] = self._add(states[number], embeddings, window)
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
            The gradients, and the number of windows of all ranks that have one.
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
        own = self._share(pictures, again)
        totals = [tf.zeros_like(variable.value) for variable in self.variables]

        def add(pair: tuple[int, int], activations: Activations) -> None:
            nonlocal totals
            number, window = pair
            gradient = gradients[number].astype(keras.config.floatx())
            of_window = self._of_window(activations, window, states[number], gradient)
            totals = [total + part for total, part in zip(totals, of_window, strict=True)]

        # First, as the memory is needed for the others.
        computed = [pair for pair in own if pair in self._activations]
        for number, window in computed:
            with _window_fits(pictures[number].windows[window]):
                add((number, window), self._activations.pop((number, window)))
        self._activations.clear()
        rest = [pair for pair in own if pair not in computed]
        for (number, window), content in self._read(pictures, rest):
            with _window_fits(pictures[number].windows[window]):
                add((number, window), self._embed_under_tape(content))
        return totals, len(again)

    def _share(
        self, pictures: Sequence[Picture], windows: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return this rank's share of the windows, the largest first.

        Smaller ones find room in the memory that larger ones have freed.

        Args:
            pictures: the slides.
            windows: pairs of the numbers of picture and window.
        """
        areas = [pictures[number].windows[window].area for number, window in windows]
        return [windows[index] for index in deal(areas, self._sharing.size)[self._sharing.rank]]

    def _last_windows(
        self, pictures: Sequence[Picture], windows: Sequence[tuple[int, int]]
    ) -> set[tuple[int, int]]:
        """Return the last of the windows that fit together into the memory of one window."""
        left, last = self._area, set()
        for number, window in reversed(windows):
            left -= pictures[number].windows[window].area
            if left < 0:
                break
            last.add((number, window))
        return last

    def _read(
        self, pictures: Sequence[Picture], windows: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[tuple[int, int], Content]]:
        """Yield windows with their content; read ahead by threads, and report progress."""
        sharing = self._sharing
        for done, read in enumerate(read_ahead(pictures, windows, sharing.threads), 1):
            yield read
            sharing.report_progress(f"after window {done} of {len(windows)} of a step")

    def _embed(self, pixels: tf.Tensor, tissue: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        """Return the embeddings of the positions of a window with tissue, (n, channels)."""
        outputs = self._encoder(pixels[None], training=True)[0]
        rows, columns = tf.unstack(tf.shape(tissue))
        exact = outputs[offset[0] : offset[0] + rows, offset[1] : offset[1] + columns]
        return tf.cast(tf.boolean_mask(exact, tissue), keras.config.floatx())

    def _embed_under_tape(self, content: Content) -> Activations:
        with tf.GradientTape() as tape:
            embeddings = self.embed(*content)
        return tape, embeddings

    def _of_window(
        self, activations: Activations, window: int, state: np.ndarray, gradient: np.ndarray
    ) -> list[tf.Tensor]:
        """Return a window's part of the gradient of each of `variables`."""
        tape, embeddings = activations
        of_embeddings, *of_aggregator = self._differentiate(embeddings, window, state, gradient)
        of_encoder = tape.gradient(
            embeddings,
            [variable.value for variable in self._encoder.trainable_variables],
            output_gradients=of_embeddings,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return [*of_encoder, *of_aggregator]

    def _differentiate_embeddings(
        self, embeddings: tf.Tensor, window: tf.Tensor, state: tf.Tensor, gradient: tf.Tensor
    ) -> list[tf.Tensor]:
        weights = [variable.value for variable in self._aggregator.variables]
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            surrogate = self._aggregator.surrogate(embeddings, window, state, gradient)
        return tape.gradient(
            surrogate, [embeddings, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )


@contextlib.contextmanager
def _window_fits(window: Window) -> Iterator[None]:
    """Turn an error of too little memory into a message that says which setting to change."""
    try:
        yield
    except tf.errors.ResourceExhaustedError:
        (top, bottom), (left, right) = window.rows.pixels, window.columns.pixels
        height, width = bottom - top, right - left
        outputs = max(stop - start for start, stop in (window.rows.outputs, window.columns.outputs))
        smaller = f"set whole_slides.window to {max(height, width) // 2}"
        hint = smaller if outputs > 1 else "no window is smaller; use a smaller model"
        raise UserError(
            f"a window of {width}×{height} px does not fit into the memory of the device; {hint}"
        ) from None


def deal(areas: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the windows of each rank, the largest first, so that all get about the same area.

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
    return dealt


def read_ahead(
    pictures: Sequence[Picture],
    windows: Sequence[tuple[int, int]],
    threads: int,
) -> Iterator[tuple[tuple[int, int], Content]]:
    """Yield windows in order with their content: pixels, tissue, and the offset of its positions.

    Args:
        pictures: the slides.
        windows: pairs of the numbers of picture and window.
        threads: to read with.
    """

    def read(number: int, index: int) -> Content:
        window = pictures[number].windows[index]
        pixels, tissue = pictures[number].read_pixels(window), pictures[number].tissue_in(window)
        offset = np.array([window.rows.offset, window.columns.offset], np.int32)
        return pixels, tissue, offset

    with ThreadPoolExecutor(threads) as pool:
        reading = []
        try:
            for following in windows:
                reading.append((following, pool.submit(read, *following)))
                if len(reading) > AHEAD_PER_THREAD * threads:
                    pair, future = reading.pop(0)
                    yield pair, future.result()
            while reading:
                pair, future = reading.pop(0)
                yield pair, future.result()
        finally:
            for _, future in reading:
                future.cancel()
