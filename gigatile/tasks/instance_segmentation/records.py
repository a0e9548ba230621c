"""The records of images with instances."""

from pathlib import Path

from gigatile.records.instances import decode_annotated
from gigatile.records.shard_layout import lay_out_shards
from gigatile.records.tfrecord import read_record_at

__all__ = ["LAY_OUT", "record_id"]

LAY_OUT = lay_out_shards


def record_id(path: Path, offset: int = 0) -> str:
    """Return the image that the record at a byte of a file belongs to."""
    return decode_annotated(read_record_at(path, offset)).image_id
