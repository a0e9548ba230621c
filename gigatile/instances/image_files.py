"""Read image files: PNG, JPEG and TIFF with 8 bits per channel."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from gigatile.records.instances import decode_image, encode_png

# More pixels do not fit into a record together with their masks; larger images are slides.
MAX_PIXELS = 100_000_000
# The modes of Pillow that are 8 bits per channel.
_MODES = ("L", "LA", "P", "PA", "RGB", "RGBA", "1")


class ImageError(Exception):
    """An image cannot be used. The message says why, without the file's name."""


@dataclass(frozen=True)
class ImageFile:
    """An image.

    Attributes:
        data: RGB, encoded as JPEG or PNG without metadata.
        height, width: in pixels.
    """

    data: bytes
    height: int
    width: int


def read_image(path: Path) -> ImageFile:
    """Read an image. A JPEG in RGB or grey keeps its pixels; others are encoded as PNG.

    The orientation in EXIF data is ignored, as annotations refer to the stored pixels.

    Raises:
        ImageError: the file is not an image, is damaged, too large, or has more than 8 bits.
    """
    try:
        with path.open("rb") as handle, Image.open(handle) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ImageError(
                    f"{width} × {height} pixels; an image has at most {MAX_PIXELS:,}. Annotate "
                    "regions of a slide instead"
                )
            if image.mode not in _MODES:
                raise ImageError(
                    f"its pixels have the mode {image.mode}; must be 8 bits per channel: RGB, grey "
                    "or a palette"
                )
            if getattr(image, "n_frames", 1) != 1:
                raise ImageError(f"has {getattr(image, 'n_frames', 1)} frames; must have one")
            if image.format == "JPEG" and image.mode in ("L", "RGB"):
                data = without_metadata(path.read_bytes())
                decode_image(data)
            else:
                data = encode_png(np.asarray(image.convert("RGB")))
    except Image.DecompressionBombError:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from None
    except (UnidentifiedImageError, SyntaxError, ValueError, EOFError) as error:
        raise ImageError(f"not an image that can be read: {_short(error)}") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise ImageError(f"it is damaged: {_short(error)}") from None
    return ImageFile(data, height, width)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


def without_metadata(data: bytes) -> bytes:
    """Return a JPEG without comments and application data, except the Adobe marker.

    EXIF data may name a patient or a place. The Adobe marker says how the colours are coded.

    Raises:
        ValueError: the markers are damaged.
    """
    kept, position = [data[:2]], 2
    while True:
        if data[position : position + 1] != b"\xff" or position + 4 > len(data):
            raise ValueError("a marker of the JPEG is damaged")
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        length = 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if not (0xE0 <= marker <= 0xEF or marker == 0xFE) or marker == 0xEE:
            kept.append(data[position : position + length])
        position += length
        if marker == 0xDA:  # start of scan: pixels follow
            return b"".join([*kept, data[position:]])
