"""Parts: records of several images in one file, `<part>.tfrecord`, and their states in one file.

A job prepares the images of a part together: a job for each small image would take longer than the
work. The images of a part are of one split, so that a change of a test image does not write the
shards again. The state file, `<part>.json`, has the state of each image, and where its records are.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from gigatile.errors import UserError
from gigatile.json_models import JsonModel, read_model


class Span(JsonModel):
    """The records of an image in the file of its part, in bytes; they follow each other."""

    model_config = ConfigDict(extra="allow")

    offset: int
    bytes: int
    sha256: str


class _ImageState(JsonModel):
    model_config = ConfigDict(extra="allow")

    image: str
    records: Span


class _Part(JsonModel):
    model_config = ConfigDict(extra="allow")

    images: list[_ImageState]


# The prefix of the parts of new images, which have no split.
NEW = "new"


def part_of(image_id: str, split: str, parts: int) -> str:
    """Return the name of the part that an image belongs to, such as `train-0000`.

    It depends on the image's id and split only, so that other images do not move it.

    Args:
        image_id: the id.
        split: train, valid or test; empty: a new image.
        parts: number of parts of each split.
    """
    digest = hashlib.blake2b(image_id.encode(), digest_size=8).digest()
    return f"{split or NEW}-{int.from_bytes(digest, 'big') % parts:04d}"


def image_state(folder: Path, part: str, image: str) -> dict[str, Any]:
    """Return the state of an image, as JSON values.

    Args:
        folder: of the parts.
        part: the name of the image's part.
        image: the id.

    Raises:
        UserError: the file of the part is missing or damaged, or has no such image.
    """
    path = folder / f"{part}.json"
    states = _read(path, path.stat().st_mtime_ns if path.exists() else 0)
    if image not in states:
        raise UserError(f"{path}: has no state of image {image!r}; delete this file and run again")
    return states[image]


def span_of(folder: Path, part: str, image: str) -> tuple[int, int]:
    """Return offset and size in bytes of the records of an image in the file of its part.

    Raises:
        UserError: see `image_state`.
    """
    records = image_state(folder, part, image)["records"]
    return records["offset"], records["bytes"]


@lru_cache(64)
def _read(path: Path, modified_ns: int) -> dict[str, dict[str, Any]]:
    return {state.image: state.model_dump() for state in read_model(_Part, path).images}
