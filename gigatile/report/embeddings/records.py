"""Embeddings as records, for the search for equal pixels."""

from gigatile.records.embedding import decode_embedding
from gigatile.records.files import RecordFile
from gigatile.records.tfrecord import damaged, read_sized
from gigatile.report.records import Record, RecordKind


def read_embedding(file: RecordFile, offset: int, size: int) -> Record:
    """Read an embedding. Its pixels are the hash of its tile, unless that has too few colours."""
    data = read_sized(file, offset, size)
    try:
        embedding = decode_embedding(data)
    except ValueError as error:
        raise damaged(file.path, offset, str(error)) from None
    return Record(embedding.slide, data, [embedding.pixels] if embedding.pixels else [])


EMBEDDINGS = RecordKind("embedding", "tile", read_embedding)
