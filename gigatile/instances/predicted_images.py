"""The table of new images and their detections: predictions/images.predicted.tsv."""

from collections.abc import Mapping
from pathlib import Path

from gigatile.errors import UserError
from gigatile.tables import read_table

# `regions` is the number of the image's records. `height` and `width` are empty if it has several.
COLUMNS = ("image", "patient", "state", "reason", "regions", "height", "width", "detections")


def read_regions(table: Path) -> Mapping[str, range]:
    """Return the ids of the regions of each new image in detections.json, as `image_id`.

    Regions are numbered from 1 in the order of the table; an image without a record has none.

    Raises:
        UserError: the table is missing or damaged.
    """
    regions, first = {}, 1
    for number, row in enumerate(read_table(table, COLUMNS), 2):
        text = row["regions"] or "0"
        if not text.isascii() or not text.isdecimal():
            raise UserError(f"{table}: row {number}: regions {text!r} is not a whole number")
        regions[row["image"]] = range(first, first + int(text))
        first += int(text)
    return regions
