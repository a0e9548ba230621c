"""A Set Transformer over the tiles of a slide.

Lee et al. 2019, https://arxiv.org/abs/1810.00825: blocks of induced attention (ISAB, equations 9
and 10), of which time and memory grow linearly with the tiles. The pooling has one seed (PMA).
"""

import keras
from keras import ops

from gigatile.models.bag_classifier import BagParts, normalised
from gigatile.settings.train import TrainSettings

# Numbers of a tile's vector, blocks, heads, and inducing points of a block.
WIDTH, BLOCKS, HEADS, POINTS = 256, 2, 4, 32


def build(
    embeddings: keras.KerasTensor, present: keras.KerasTensor, settings: TrainSettings
) -> BagParts:
    """Return vectors of tiles and their scores of attention; see `Architecture.kind`."""
    layers = keras.layers
    vectors = layers.Dense(WIDTH, name="vector")(normalised(embeddings))
    # The numbers of the inducing points, (n, points), for each slide of the batch.
    numbers = ops.zeros_like(present[:, :1], "int32") + ops.arange(POINTS)[None]
    for block in range(BLOCKS):
        points = layers.Embedding(POINTS, WIDTH, name=f"points_{block}")(numbers)
        summary = _attend(points, vectors, present[:, None], f"in_{block}")
        vectors = _attend(vectors, summary, None, f"out_{block}")
    return BagParts(
        vectors,
        layers.Dense(1, use_bias=False, dtype="float32", name="score")(vectors),
        mixes=True,
    )


def _attend(
    queries: keras.KerasTensor,
    values: keras.KerasTensor,
    present: keras.KerasTensor | None,
    name: str,
) -> keras.KerasTensor:
    """Return a block of multi-head attention (MAB, equations 6 and 7).

    Args:
        queries: (n, queries, numbers).
        values: (n, values, numbers), which the queries attend to.
        present: (n, 1, values), 0 for padding; None: all are present.
        name: prefix of the layers.
    """
    layers = keras.layers
    attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"{name}_attention")
    mask = None if present is None else present > 0
    attended = layers.Add(name=f"{name}_sum")(
        [queries, attention(queries, values, attention_mask=mask)]
    )
    hidden = layers.LayerNormalization(dtype="float32", name=f"{name}_norm")(attended)
    dense = layers.Dense(WIDTH, activation="relu", name=f"{name}_dense")(hidden)
    summed = layers.Add(name=f"{name}_dense_sum")([hidden, dense])
    return layers.LayerNormalization(dtype="float32", name=f"{name}_dense_norm")(summed)
