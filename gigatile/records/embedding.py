"""The record of a tile's embedding: its features, encoding and decoding."""

from dataclasses import dataclass

import numpy as np

from gigatile.records.example import decode_example, encode_example, first_bytes

# How embeddings are stored: single precision, little-endian.
STORED = np.dtype("<f4")
EMBEDDING, ENCODER = "embedding", "encoder"


@dataclass(frozen=True)
class Embedding:
    """The embedding of a tile.

    Attributes:
        values: (dimensions,) float32.
        encoder: 16 bytes that identify the encoder and its input.
        pixels: hash of the tile's JPEG, 8 bytes; empty: the tile has so few colours that one of
            another slide can be equal.
        slide: the slide's id.
        x, y: top-left corner of the tile in pixels of level 0.
        extent: side of the tile in pixels of level 0.
    """

    values: np.ndarray
    encoder: bytes
    pixels: bytes
    slide: str
    x: int
    y: int
    extent: float


def encode_embedding(embedding: Embedding) -> bytes:
    """Return an embedding as a serialised tf.train.Example.

    Features: embedding, encoder, slide and pixels (bytes), x, y (int64), extent (float).
    """
    features = vars(embedding) | {
        EMBEDDING: embedding.values.astype(STORED).tobytes(),
        "extent": float(embedding.extent),
    }
    del features["values"]
    return encode_example({name: value for name, value in features.items() if value != b""})


def values_of(data: bytes) -> np.ndarray:
    """Return the values of an encoded embedding, (dimensions,) float32.

    Raises:
        ValueError: it is another kind of record.
    """
    return np.frombuffer(first_bytes(data, EMBEDDING), STORED)


def encoder_of(data: bytes) -> bytes:
    """Return the encoder of an encoded embedding; see `values_of`."""
    return first_bytes(data, ENCODER)


def decode_embedding(data: bytes) -> Embedding:
    """Decode an embedding that `encode_embedding` encoded.

    Raises:
        ValueError: it is another kind of record.
    """
    features = {"pixels": b""} | decode_example(data)
    try:
        return Embedding(
            values=np.frombuffer(features[EMBEDDING], STORED),  # type: ignore[arg-type]
            encoder=features[ENCODER],  # type: ignore[arg-type]
            pixels=features["pixels"],  # type: ignore[arg-type]
            slide=features["slide"].decode(),  # type: ignore[union-attr]
            x=int(features["x"]),
            y=int(features["y"]),
            extent=float(features["extent"]),
        )
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"the record is not an embedding: {error!r}") from None
