"""Read stored embeddings: from shards, or from the file of a slide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from gigatile.errors import UserError
from gigatile.records.embedding import decode_embedding, encoder_of, values_of
from gigatile.records.tfrecord import read_records


class Records(Protocol):
    """Records by number, as in `gigatile.records.slides.SlideReader`."""

    def records(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """Yield encoded records."""

    def damaged(self, record: int, fault: str) -> UserError:
        """Return an error that names the record."""


def embeddings_in(
    reader: Records, records: Sequence[int], dimensions: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the embedding of each record, (dimensions,) float32.

    Args:
        reader: of the records.
        records: their numbers.
        dimensions: that they must have; None: any.

    Raises:
        UserError: a record is damaged, or has another number of dimensions.
    """
    for record, data in zip(records, reader.records(records), strict=True):
        try:
            values = values_of(data)
        except ValueError as error:
            raise reader.damaged(record, f"not an embedding ({error})") from None
        if dimensions is not None and len(values) != dimensions:
            raise reader.damaged(
                record, f"an embedding of {len(values)} numbers among others of {dimensions}"
            )
        yield values


def encoder_in(reader: Records, records: Sequence[int]) -> bytes:
    """Return the encoder of records, which must all be from the same one.

    Raises:
        UserError: a record is damaged, or from another encoder than the first.
    """
    first: bytes | None = None
    for record, data in zip(records, reader.records(records), strict=True):
        try:
            encoder = encoder_of(data)
        except ValueError as error:
            raise reader.damaged(record, f"not an embedding ({error})") from None
        if first not in (None, encoder):
            raise reader.damaged(record, "an embedding of another encoder")
        first = encoder
    if first is None:
        raise ValueError("no records")
    return first


@dataclass(frozen=True)
class SlideEmbeddings:
    """The embeddings of a slide.

    Attributes:
        values: (tiles, dimensions) float32.
        x, y: (tiles,) int64, top-left corners in pixels of level 0.
        extent: side of a tile in pixels of level 0.
        encoder: 16 bytes that identify the encoder and its input.
    """

    values: np.ndarray
    x: np.ndarray
    y: np.ndarray
    extent: float
    encoder: bytes


def read_embeddings(path: Path) -> SlideEmbeddings:
    """Read the embeddings of a slide, embeddings/<slide>.tfrecord.

    Raises:
        UserError: the file is missing, damaged or empty, or its embeddings do not fit together.
    """
    try:
        embeddings = [decode_embedding(data) for data in read_records(path)]
    except ValueError as error:
        raise UserError(f"{path}: {error}; delete it and run again") from None
    if not embeddings:
        raise UserError(f"{path}: has no embeddings")
    first = embeddings[0]
    for each in embeddings:
        if (each.encoder, len(each.values), each.extent) != (
            first.encoder,
            len(first.values),
            first.extent,
        ):
            raise UserError(f"{path}: has embeddings of two encoders; delete it and run again")
    return SlideEmbeddings(
        values=np.stack([each.values for each in embeddings]),
        x=np.array([each.x for each in embeddings], np.int64),
        y=np.array([each.y for each in embeddings], np.int64),
        extent=first.extent,
        encoder=first.encoder,
    )
