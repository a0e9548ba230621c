"""The tile record: its features, encoding and decoding."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast, get_type_hints

import imagecodecs
import numpy as np
import simplejpeg

from gigatile.errors import UserError
from gigatile.records.example import decode_example, encode_example, first_bytes
from gigatile.records.tfrecord import read_records


class _Features(TypedDict):
    """The features of a tile. A feature that may be missing is then None or empty."""

    image: bytes
    slide: bytes
    x: int
    y: int
    extent: float
    mpp: float | None
    tissue: float
    patient: bytes
    label: bytes


# An image with fewer colours (glass, the fill value of a scanner, a straight edge between them) can
# be the same on two slides by chance. Tissue and sensor noise have hundreds.
FEWEST_COLOURS = 64
_TYPES = get_type_hints(_Features)
_FLOATS = frozenset({"extent", "mpp", "tissue"})


@dataclass(frozen=True)
class Tile:
    """A square of a slide.

    Attributes:
        image: the pixels as RGB JPEG.
        slide: the slide's id.
        x, y: the top-left corner in pixels of level 0.
        extent: the side in pixels of level 0; it differs from the image's side after resampling.
        mpp: micrometres per pixel of the image; None if unknown.
        tissue: the fraction of the area that is tissue, 0-1.
        patient, label: from the sheet, in shards. They are empty in the records of a slide, so that
            a correction of the sheet does not change them.
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
                f"slide {self.slide}: the image of the tile at ({self.x}, {self.y}) is damaged: "
                f"{error}; delete the slide's tiles and run again"
            ) from None


def decode_jpeg(data: bytes, into: np.ndarray | None = None) -> np.ndarray:
    """Decode a JPEG to RGB: (height, width, 3) uint8, with the same pixels as Pillow.

    Releases the GIL.

    Args:
        data: the JPEG; grey is converted to RGB.
        into: a contiguous array of the image's shape that receives the pixels and is returned.
            After an error its content is undefined.

    Raises:
        ValueError: the image has another shape, or is damaged, even if libjpeg could still decode
            it. A changed bit that gives another valid image is not detected; the checksums of the
            records detect it.
    """
    # Strict is the default of the library, but important: never train on half an image.
    pixels = simplejpeg.decode_jpeg(data, buffer=into, strict=True)
    if into is not None and pixels.shape != into.shape:
        raise ValueError(f"shape {pixels.shape}, expected {into.shape}")
    return pixels


def is_plain(image: bytes) -> bool:
    """Return whether a tile has so few colours that a tile of another slide can be equal.

    Args:
        image: its JPEG.
    """
    try:
        return has_few_colours(decode_jpeg(image))
    except ValueError:
        return False


def has_few_colours(pixels: np.ndarray) -> bool:
    """Return whether a decoded tile, (height, width, 3) uint8, is plain; see `is_plain`."""
    rows = pixels.reshape(-1, 3)
    # A few pixels of nearly every tile have enough colours.
    return all(_colours(rows[::step]) < FEWEST_COLOURS for step in (61, 7, 1))


def _colours(pixels: np.ndarray) -> int:
    # Each colour becomes an integer of four bytes: they are sorted fast.
    padded = np.zeros((len(pixels), 4), np.uint8)
    for channel in range(3):
        padded[:, channel] = pixels[:, channel]
    colours = padded.view(np.uint32)[:, 0]
    colours.sort()
    return 1 + int(np.count_nonzero(colours[1:] != colours[:-1]))


def jpeg_shape(data: bytes) -> tuple[int, int, int]:
    """Return the shape of a JPEG when decoded; only the header is read.

    Raises:
        ValueError: the header is damaged.
    """
    height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=True)
    return int(height), int(width), 3


def encode_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    """Encode RGB pixels, (height, width, 3) uint8, as JPEG without colour profile or metadata.

    Releases the GIL.
    """
    # The same bytes as from Pillow, but 20 % faster, without its streams.
    return bytes(imagecodecs.jpeg8_encode(pixels, level=quality, subsampling="420"))


def encode_tile(tile: Tile) -> bytes:
    """Return a tile as a serialised tf.train.Example.

    Features: image, slide (bytes), x, y (int64), extent, tissue (float), and if known mpp (float),
    patient, label (bytes).
    """
    features = {name: value for name, value in vars(tile).items() if value not in (None, "")}
    # An int would be encoded as another type of feature.
    features |= {name: float(features[name]) for name in _FLOATS & features.keys()}
    return encode_example(features)


def encode_sheet_fields(patient: str, label: str) -> bytes:
    """Return patient and label as encoded features, to be appended to an encoded record.

    Concatenated messages are read as one:
    https://protobuf.dev/programming-guides/encoding/#last-one-wins.
    """
    return encode_example({"patient": patient, "label": label})


def image_of(data: bytes) -> bytes:
    """Return the JPEG of an encoded tile, without decoding the other features."""
    return first_bytes(data, "image")


def decode_tile(data: bytes) -> Tile:
    """Decode a tile that `encode_tile` encoded.

    Raises:
        UserError: it is another kind of record, for example of another program.
    """
    try:
        features = {"mpp": None, "patient": b"", "label": b""} | decode_example(data)
    except ValueError as error:
        raise UserError(f"the record is not a tile: {error}") from None
    wrong = sorted(features.keys() ^ _TYPES.keys())
    wrong += [name for name, kind in _TYPES.items() if not isinstance(features.get(name, 0), kind)]
    if wrong:
        raise UserError(
            f"the record is not a tile: its features are {', '.join(sorted(features))[:200]}; "
            f"missing, unknown or of another type: {', '.join(dict.fromkeys(wrong))[:200]}"
        )
    checked = cast(_Features, features)
    try:
        return Tile(
            image=checked["image"],
            slide=checked["slide"].decode(),
            x=checked["x"],
            y=checked["y"],
            extent=checked["extent"],
            mpp=checked["mpp"],
            tissue=checked["tissue"],
            patient=checked["patient"].decode(),
            label=checked["label"].decode(),
        )
    except UnicodeDecodeError as error:
        raise UserError(f"the record is not a tile: its text is not UTF-8 ({error})") from None


def read_tiles(path: Path) -> Iterator[Tile]:
    """Yield the tiles of a record file.

    Raises:
        UserError: the file is damaged, or has a record that is not a tile.
    """
    for number, data in enumerate(read_records(path), 1):
        try:
            yield decode_tile(data)
        except UserError as error:
            raise UserError(f"{path}: record {number}: {error}") from None
