"""Records: the TFRecord container, the tile record, and shards of shuffled records.

Reading and writing needs no TensorFlow, which takes seconds to import. TensorFlow's readers can
read the same files.
"""

from gigatile.records.tfrecord import RecordError, read_records, write_records
from gigatile.records.tile import Tile, decode_tile, encode_tile, read_tiles

__all__ = [
    "RecordError",
    "Tile",
    "decode_tile",
    "encode_tile",
    "read_records",
    "read_tiles",
    "write_records",
]
