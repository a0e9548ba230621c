"""The records of images."""

from pathlib import Path

from gigatile.records.example import decode_example
from gigatile.records.shard_layout import lay_out_shards
from gigatile.records.tfrecord import read_records

LAY_OUT = lay_out_shards


def record_id(path: Path) -> str:
    """Return the image that a file of records belongs to."""
    return bytes(decode_example(next(iter(read_records(path))))["image"]).decode()
