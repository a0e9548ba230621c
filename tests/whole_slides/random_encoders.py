"""Random encoders, and pictures of random pixels that are divided into windows."""

from collections.abc import Sequence

import keras
import numpy as np
from hypothesis import strategies as st

from gigatile.whole_slides.receptive_field import Fields
from gigatile.whole_slides.two_passes import Picture
from gigatile.whole_slides.windows import Window, around, divide

CHANNELS = 3
L = keras.layers
KINDS = ["conv", "depthwise", "separable", "max", "average", "pad", "crop", "norm", "residual"]
# Total stride 4.
ENCODER = [
    ("conv", (5, 5), 2, "same", 1, 0, 0),
    ("residual", (1, 1), 1, "same", 1, 0, 0),
    ("max", (3, 3), 2, "same", 1, 0, 0),
    ("conv", (3, 3), 1, "same", 2, 0, 0),
]


@st.composite
def layer_lists(draw):
    """Draw a few layers: kernels, strides, dilations and paddings; both axes may differ."""
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
        stride = draw(st.integers(1, 3))
        layers.append(
            (
                draw(st.sampled_from(KINDS)),
                kernel,
                stride,
                draw(st.sampled_from(["same", "valid"])),
                draw(st.integers(1, 3)) if stride == 1 else 1,
                draw(st.integers(0, 2)),
                draw(st.integers(0, 2)),
            )
        )
    return layers


def build(layers, seed: int = 1) -> keras.Model:
    """Build an encoder."""
    keras.utils.set_random_seed(seed)
    x = inputs = keras.Input((None, None, CHANNELS))
    for kind, kernel, stride, padding, dilation, start, end in layers:
        window = {"strides": stride, "padding": padding}
        smooth = {"dilation_rate": dilation, "activation": "tanh", **window}
        if kind == "conv":
            x = L.Conv2D(4, kernel, **smooth)(x)
        elif kind == "depthwise":
            x = L.DepthwiseConv2D(kernel, **smooth)(x)
        elif kind == "separable":
            x = L.SeparableConv2D(4, kernel, **smooth)(x)
        elif kind == "max":
            x = L.MaxPooling2D(kernel, **window)(x)
        elif kind == "average":
            x = L.AveragePooling2D(kernel, **window)(x)
        elif kind == "pad":
            x = L.ZeroPadding2D(((start, end), (end, start)))(x)
        elif kind == "crop":
            x = L.Cropping2D(((start, end), (end, start)))(x)
        elif kind == "norm":
            x = L.LayerNormalization(axis=-1)(x)
        else:
            branch = L.Conv2D(x.shape[-1], 3, padding="same", activation="tanh")(x)
            branch = L.Conv2D(x.shape[-1], 3, padding="same", dilation_rate=2)(branch)
            x = L.Add()([x, branch])
    return keras.Model(inputs, x)


def random_pixels(height: int, width: int, seed: int = 7) -> np.ndarray:
    """Return a picture, (height, width, channels) float64."""
    return np.random.default_rng(seed).normal(size=(height, width, CHANNELS))


def windows_with_tissue(
    fields: Fields, height: int, width: int, side: int, tissue: np.ndarray
) -> Sequence[Window]:
    """Return windows around the tissue of a picture, of at most `side` outputs along each axis."""
    windows = []
    for window in divide(fields, height, width, side):
        needed = tissue[slice(*window.rows.outputs), slice(*window.columns.outputs)]
        if needed.any():
            windows.append(around(window, fields, height, width, needed))
    return windows


def picture_of(pixels: np.ndarray, fields: Fields, side: int, tissue: np.ndarray) -> Picture:
    """Return pixels (height, width, channels) as a picture that is read window by window."""

    def read(window: Window) -> np.ndarray:
        return pixels[slice(*window.rows.pixels), slice(*window.columns.pixels)]

    windows = windows_with_tissue(fields, *pixels.shape[:2], side, tissue)
    return Picture(windows, tissue, read)
