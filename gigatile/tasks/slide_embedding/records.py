"""The records of slides: the embeddings of their tiles; those of a slide stay together."""

from functools import partial
from pathlib import Path

from gigatile.errors import UserError
from gigatile.records.embedding import decode_embedding
from gigatile.records.slide_layout import lay_out_slides
from gigatile.records.tfrecord import read_records

__all__ = ["LAY_OUT", "record_id"]

# Tiles that another program embedded can overlap.
LAY_OUT = partial(lay_out_slides, may_overlap=True)


def record_id(path: Path) -> str:
    """Return the id of the slide that a file of records belongs to, from its first record.

    Raises:
        UserError: the file is damaged, or has other records.
    """
    try:
        return decode_embedding(next(read_records(path))).slide
    except ValueError as error:
        raise UserError(f"{path}: {error}; delete it and run again") from None
