"""The tile record: one definition for whoever writes, reads, trains on or shows a tile."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import simplejpeg

from gigatile.errors import UserError
from gigatile.records.example import decode_example, encode_example, first_bytes
from gigatile.records.tfrecord import read_records

# What each feature of a tile's record is; those that may be missing are None or empty then.
_KINDS: dict[str, Any] = {
    "image": bytes,
    "slide": bytes,
    "x": int,
    "y": int,
    "extent": float,
    "mpp": float | None,
    "tissue": float,
    "patient": bytes,
    "label": bytes,
}
_FLOATS = frozenset({"extent", "mpp", "tissue"})


@dataclass(frozen=True)
class Tile:
    """A square of a slide.

    Attributes:
        image: the pixels as JPEG, RGB.
        slide: whose it is.
        x, y: its top-left corner, in pixels of the slide's level 0.
        extent: its side in pixels of level 0; differs from the image's side after resampling.
        mpp: micrometres per pixel of the image, or None where the slide does not tell.
        tissue: the share of its area that is not background, 0-1.
        patient, label: what the cohort says of the slide: in shards. They are empty in a slide's
            own records, which stay as they are when the cohort's sheet is corrected.
    """

    image: bytes
    slide: str
    x: int
    y: int
    extent: float
    mpp: float | None
    tissue: float
    patient: str = ""
    label: str = ""

    def pixels(self) -> np.ndarray:
        """Return the decoded image: (height, width, 3) uint8.

        Raises:
            UserError: the image is damaged.
        """
        try:
            return decode_jpeg(self.image)
        except ValueError as error:
            raise UserError(
                f"slide {self.slide}: the image of its tile at ({self.x}, {self.y}) is damaged: "
                f"{error}; delete the slide's tiles to have them remade"
            ) from None


def decode_jpeg(data: bytes, into: np.ndarray | None = None) -> np.ndarray:
    """Decode a JPEG to RGB: (height, width, 3) uint8, the pixels that Pillow gives.

    Other threads run meanwhile.

    Args:
        data: the JPEG; grey is given as RGB.
        into: takes the pixels and is returned; contiguous, and of the image's shape. After an error
            its content is nothing.

    Raises:
        ValueError: the image is of another shape, or damaged. What libjpeg can make a picture of in
            spite of the damage is refused too; bits that changed and still make sense go unseen,
            which is what the checksums of records are for.
    """
    # Strict is the library's default, but all depends on it: half a picture must not be trained on.
    pixels = simplejpeg.decode_jpeg(data, buffer=into, strict=True)
    if into is not None and pixels.shape != into.shape:
        raise ValueError(f"it has the shape {pixels.shape} where {into.shape} is expected")
    return pixels


def jpeg_shape(data: bytes) -> tuple[int, int, int]:
    """Return the shape that a JPEG will have when decoded; its header alone is read.

    Raises:
        ValueError: the header is damaged.
    """
    height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=True)
    return int(height), int(width), 3


def encode_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    """Encode RGB pixels, (height, width, 3) uint8, as JPEG without colour profile or metadata.

    Other threads run meanwhile.
    """
    # Byte for byte what Pillow writes, without its streams: a fifth faster.
    return bytes(imagecodecs.jpeg8_encode(pixels, level=quality, subsampling="420"))


def encode_tile(tile: Tile) -> bytes:
    """Return a tile as a serialised tf.train.Example.

    Features: image, slide (bytes), x, y (int64), extent, tissue (float), and where they are known
    mpp (float), patient, label (bytes).
    """
    features = {name: value for name, value in vars(tile).items() if value not in (None, "")}
    # A whole number may come as an int, which would be another type of feature.
    features |= {name: float(features[name]) for name in _FLOATS & features.keys()}
    return encode_example(features)


def encode_sheet_fields(patient: str, label: str) -> bytes:
    """Return what, appended to an encoded tile, says whose it is.

    Messages that follow each other are read as one:
    https://protobuf.dev/programming-guides/encoding/#last-one-wins.
    """
    return encode_example({"patient": patient, "label": label})


def image_of(data: bytes) -> bytes:
    """Return the JPEG out of what `encode_tile` wrote, without decoding the rest."""
    return first_bytes(data, "image")


def decode_tile(data: bytes) -> Tile:
    """Read back what `encode_tile` wrote.

    Raises:
        UserError: it is no such thing, as a record that another program has written.
    """
    try:
        found: dict[str, Any] = {"mpp": None, "patient": b"", "label": b""}
        found |= decode_example(data)
    except ValueError as error:
        raise UserError(f"the record is of no tile: {error}") from None
    wrong = sorted(found.keys() ^ _KINDS.keys())
    wrong += [name for name, kind in _KINDS.items() if not isinstance(found.get(name, 0), kind)]
    if wrong:
        raise UserError(
            f"the record is of no tile: its features are {', '.join(sorted(found))[:200]}, and "
            f"not as Gigatile writes them: {', '.join(dict.fromkeys(wrong))[:200]}"
        )
    try:
        text = {name: found[name].decode() for name in ("slide", "patient", "label")}
    except UnicodeDecodeError as error:
        raise UserError(f"the record is of no tile: its text is not UTF-8 ({error})") from None
    return Tile(**found | text)


def read_tiles(path: Path) -> Iterator[Tile]:
    """Yield the tiles of a record file.

    Raises:
        UserError: the file is damaged, or has a record that is of no tile.
    """
    for number, data in enumerate(read_records(path), 1):
        try:
            yield decode_tile(data)
        except UserError as error:
            raise UserError(f"{path}: record {number}: {error}") from None
