"""The loss of a picture and its exact gradient, in memory that does not grow with the picture.

The first pass computes the embeddings of each window. Then the gradient of the loss with respect
to every embedding is known. In the second pass, each window runs again under a tape with that
gradient; windows without any gradient are left out. Only the embeddings of the whole picture are in
memory, and the activations of one window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gigatile.whole_slides.windows import Window

# Returns pixels (height, width, channels) of a window.
ReadPixels = Callable[[Window], Any]


@dataclass(frozen=True)
class Gradients:
    """The result of two passes.

    Attributes:
        loss: of the picture, a scalar.
        encoder: the gradients of the encoder's trainable variables.
        head: the gradients of the variables of the loss.
        repeated: number of windows that ran again.
    """

    loss: tf.Tensor
    encoder: list[tf.Tensor]
    head: list[tf.Tensor]
    repeated: int


def embed(encoder: keras.Model, windows: Sequence[Window], read: ReadPixels) -> tf.Tensor:
    """Return the embeddings (rows, columns, channels) of a picture."""
    rows = max(window.rows.outputs[1] for window in windows)
    columns = max(window.columns.outputs[1] for window in windows)
    grid = None
    for window in windows:
        part = _run(encoder, window, read).numpy()
        if grid is None:
            grid = np.empty((rows, columns, part.shape[-1]), part.dtype)
        grid[slice(*window.rows.outputs), slice(*window.columns.outputs)] = part
    return tf.constant(grid)


def gradients(
    encoder: keras.Model,
    windows: Sequence[Window],
    read: ReadPixels,
    loss_of: Callable[[tf.Tensor], tf.Tensor],
    head: Sequence[tf.Variable] = (),
) -> Gradients:
    """Return the loss of a picture and its gradients.

    Args:
        encoder: from pictures (n, height, width, channels) to embeddings.
        windows: of the picture; see `gigatile.whole_slides.windows.divide`.
        read: returns the pixels of a window.
        loss_of: returns the loss (a scalar) from embeddings (rows, columns, channels).
        head: the variables that `loss_of` uses.
    """
    grid = embed(encoder, windows, read)
    with tf.GradientTape() as tape:
        tape.watch(grid)
        loss = loss_of(grid)
    of_grid, *of_head = tape.gradient(
        loss, [grid, *head], unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    variables = [variable.value for variable in encoder.trainable_variables]
    sums = [tf.zeros_like(variable) for variable in variables]
    repeated = 0
    for window in windows:
        received = of_grid[slice(*window.rows.outputs), slice(*window.columns.outputs)]
        if not np.any(received.numpy()):
            continue
        repeated += 1
        with tf.GradientTape() as tape:
            outputs = _run(encoder, window, read)
        more = tape.gradient(
            outputs,
            variables,
            output_gradients=received,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        sums = [total + part for total, part in zip(sums, more, strict=True)]
    return Gradients(loss, sums, of_head, repeated)


def _run(encoder: keras.Model, window: Window, read: ReadPixels) -> tf.Tensor:
    """Return the embeddings of a window that are exact, (rows, columns, channels)."""
    outputs = encoder(tf.convert_to_tensor(read(window))[None], training=True)[0]
    rows, columns = (
        slice(span.offset, span.offset + span.outputs[1] - span.outputs[0])
        for span in (window.rows, window.columns)
    )
    return outputs[rows, columns]
