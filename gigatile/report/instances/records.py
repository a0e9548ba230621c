"""Images with instances as records, for the search for equal pixels."""

import numpy as np

from gigatile.errors import UserError
from gigatile.records.files import RecordFile
from gigatile.records.instances import decode_annotated
from gigatile.records.tfrecord import damaged, read_sized
from gigatile.report.records import Record, RecordKind

# An image with fewer colours, such as an empty field of view, can be the same by chance.
FEWEST_COLOURS = 16


def read_image(file: RecordFile, offset: int, size: int) -> Record:
    """Read an image. Its pixels are compared, as a file may be encoded in several ways."""
    data = read_sized(file, offset, size)
    try:
        image = decode_annotated(data)
        pixels = image.pixels()
    except UserError as error:
        raise damaged(file.path, offset, str(error)) from None
    shape = np.array(pixels.shape, "<u4").tobytes()
    return Record(image.image_id, data, [shape + pixels.tobytes()])


def is_plain(image: bytes) -> bool:
    """Return whether an image has so few colours that another one can be equal by chance."""
    pixels = np.frombuffer(image, np.uint8, offset=12).reshape(-1, 3)
    return len(np.unique(pixels, axis=0)) < FEWEST_COLOURS


IMAGES = RecordKind("image", "image", read_image, is_plain)
