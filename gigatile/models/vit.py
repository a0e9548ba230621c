"""The Vision Transformer (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929).

It consists of Keras' own layers, and takes Google's checkpoints (`.npz`; Steiner et al. 2022,
https://arxiv.org/abs/2106.10270).
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from scipy.ndimage import zoom

from gigatile.errors import UserError
from gigatile.settings.initial_weights import weights_file
from gigatile.settings.train import TrainSettings

# Side of the patches, in pixels.
PATCH = 16


class Size(NamedTuple):
    """The size of a network."""

    width: int
    depth: int
    heads: int


SIZES = {"vit_tiny": Size(192, 12, 3), "vit_small": Size(384, 12, 6)}


def build(tiles: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """Return features (n, width) of tiles (n, side, side, 3) with values 0-255: the class token.

    Raises:
        UserError: the side of the tiles is not a multiple of `PATCH`, or `settings.weights` cannot
            be loaded.
    """
    size, side = SIZES[settings.model], tiles.shape[1]
    if side % PATCH:
        raise UserError(
            f"tiles.size: found {side}; for train.model: {settings.model} it must be a multiple of "
            f"{PATCH}"
        )
    network = _build_network(settings.model, size, side // PATCH)
    if path := weights_file(settings.weights):
        _load(network, size, side // PATCH, path)
    return network(tiles)


def _build_network(name: str, size: Size, grid: int) -> keras.Model:
    """Return the network for tiles of grid × grid patches."""
    layers = keras.layers
    tiles = keras.Input((grid * PATCH, grid * PATCH, 3))
    x = layers.Rescaling(1 / 127.5, offset=-1)(tiles)
    x = layers.Reshape((grid, PATCH, grid, PATCH * 3))(x)
    x = layers.Reshape((grid**2, PATCH**2 * 3))(layers.Permute((1, 3, 2, 4))(x))
    # The class token comes first. As all of its inputs are 0, it is its row of the bias, to which
    # its position is already added.
    x = layers.ZeroPadding1D((1, 0))(x)
    x = layers.EinsumDense(
        "bnp,pd->bnd",
        (grid**2 + 1, size.width),
        bias_axes="nd",
        bias_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        name="embedding",
    )(x)
    for number in range(size.depth):
        x = layers.Add()([x, _attention(_norm(x, f"norm1_{number}"), size, number)])
        x = layers.Add()([x, _perceptron(_norm(x, f"norm2_{number}"), size, number)])
    return keras.Model(tiles, _norm(x, "norm")[:, 0], name=name)


def _norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return keras.layers.LayerNormalization(epsilon=1e-6, name=name)(x)


def _attention(x: keras.KerasTensor, size: Size, number: int) -> keras.KerasTensor:
    attention = keras.layers.MultiHeadAttention(
        size.heads, size.width // size.heads, name=f"attention_{number}"
    )
    return attention(x, x)


def _perceptron(x: keras.KerasTensor, size: Size, number: int) -> keras.KerasTensor:
    x = keras.layers.Dense(4 * size.width, activation="gelu", name=f"expand_{number}")(x)
    return keras.layers.Dense(size.width, name=f"reduce_{number}")(x)


def _load(network: keras.Model, size: Size, grid: int, path: Path) -> None:
    """Load the weights of a checkpoint; the positions are interpolated to the grid."""
    try:
        # NumPy does not close a damaged file that it opened.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            weights = {name: file[name] for name in file.files}
        for layer, values in _values(weights, size, grid).items():
            network.get_layer(layer).set_weights(values)
    except FileNotFoundError:
        raise UserError(f"train.weights: no such file: {path}; use null or a .npz file") from None
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"train.weights: cannot load {path} as weights of a Vision Transformer of width "
            f"{size.width} ({reason}); it must be a .npz checkpoint of Google's vision_transformer"
        ) from None


def _values(
    weights: Mapping[str, np.ndarray], size: Size, grid: int
) -> dict[str, list[np.ndarray]]:
    """Return the weights of each layer, by its name."""
    class_token, patches = np.split(weights["Transformer/posembed_input/pos_embedding"][0], [1])
    of_file = round(len(patches) ** 0.5)
    patches = patches.reshape(of_file, of_file, size.width)
    scale = grid / of_file
    patches = zoom(patches, (scale, scale, 1), order=1).reshape(grid**2, size.width)
    bias = np.concatenate([class_token + weights["cls"][0], patches + weights["embedding/bias"]])
    kernel = weights["embedding/kernel"].reshape(PATCH**2 * 3, size.width)
    values = {
        "embedding": [kernel, bias],
        "norm": [weights[f"Transformer/encoder_norm/{name}"] for name in ("scale", "bias")],
    }
    for number in range(size.depth):
        block = f"Transformer/encoderblock_{number}"
        for layer, part, names in (
            ("norm1", "LayerNorm_0", ("scale", "bias")),
            ("norm2", "LayerNorm_2", ("scale", "bias")),
            ("expand", "MlpBlock_3/Dense_0", ("kernel", "bias")),
            ("reduce", "MlpBlock_3/Dense_1", ("kernel", "bias")),
        ):
            values[f"{layer}_{number}"] = [weights[f"{block}/{part}/{name}"] for name in names]
        values[f"attention_{number}"] = [
            weights[f"{block}/MultiHeadDotProductAttention_1/{part}/{name}"]
            for part in ("query", "key", "value", "out")
            for name in ("kernel", "bias")
        ]
    return values
