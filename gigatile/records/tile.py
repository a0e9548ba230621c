"""The tile record: one definition for whoever writes, reads, trains on or shows a tile."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from gigatile.records.example import decode_example, encode_example


@dataclass(frozen=True)
class Tile:
    """A square of a slide.

    Attributes:
        image: the pixels as JPEG, RGB.
        slide, patient, label: whose it is; the label is empty on a new slide.
        x, y: its top-left corner, in pixels of the slide's level 0.
        extent: its side in pixels of level 0; differs from the image's side after resampling.
        mpp: micrometres per pixel of the image, or None where the slide does not tell.
        tissue: the share of its area that is not background, 0-1.
    """

    image: bytes
    slide: str
    patient: str
    label: str
    x: int
    y: int
    extent: float
    mpp: float | None
    tissue: float

    def pixels(self) -> np.ndarray:
        """Return the decoded image: (height, width, 3) uint8."""
        return decode_jpeg(self.image)


def decode_jpeg(data: bytes) -> np.ndarray:
    """Decode a JPEG to RGB: (height, width, 3) uint8."""
    return np.asarray(Image.open(io.BytesIO(data), formats=["JPEG"]).convert("RGB"))


def encode_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    """Encode RGB pixels, (height, width, 3) uint8, as JPEG without colour profile or metadata."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def encode_tile(tile: Tile) -> bytes:
    """Return a tile as a serialised tf.train.Example.

    Features: image, slide, patient, label (bytes), x, y (int64), extent, tissue (float), and mpp
    (float) where it is known.
    """
    features = {name: value for name, value in vars(tile).items() if value is not None}
    return encode_example(features)


def decode_tile(data: bytes) -> Tile:
    """Read back what `encode_tile` wrote."""
    found = decode_example(data)
    text = {name: found[name].decode() for name in ("slide", "patient", "label")}  # type: ignore[union-attr]
    return Tile(**{"mpp": None} | found | text)  # type: ignore[arg-type]
