"""Records: the TFRecord container, the tile record, and shards of shuffled records.

Read and written without TensorFlow, which takes seconds to import; its own readers read the same
files.
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
