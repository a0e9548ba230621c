"""The Vision Transformer, compared with its definition, and its published weights."""

import keras
import numpy as np
import pytest
from scipy.special import erf, softmax

from gigatile.errors import UserError
from gigatile.models.classifier import build_classifier
from gigatile.models.vit import PATCH, SIZES
from gigatile.settings.train import TrainSettings

WIDTH, DEPTH, HEADS = SIZES["vit_tiny"]


def checkpoint(grid: int) -> dict[str, np.ndarray]:
    """Return random arrays with the names and shapes of a checkpoint of Google."""
    random = np.random.default_rng(3)
    head = WIDTH // HEADS
    shapes = {
        "cls": (1, 1, WIDTH),
        "embedding/kernel": (PATCH, PATCH, 3, WIDTH),
        "embedding/bias": (WIDTH,),
        "Transformer/posembed_input/pos_embedding": (1, grid**2 + 1, WIDTH),
        "Transformer/encoder_norm/scale": (WIDTH,),
        "Transformer/encoder_norm/bias": (WIDTH,),
        "head/kernel": (WIDTH, 1000),
    }
    for number in range(DEPTH):
        block = f"Transformer/encoderblock_{number}/"
        attention = block + "MultiHeadDotProductAttention_1/"
        for part in ("query", "key", "value"):
            shapes[f"{attention}{part}/kernel"] = (WIDTH, HEADS, head)
            shapes[f"{attention}{part}/bias"] = (HEADS, head)
        shapes[f"{attention}out/kernel"] = (HEADS, head, WIDTH)
        shapes[f"{attention}out/bias"] = (WIDTH,)
        for dense, inputs, outputs in ((0, WIDTH, 4 * WIDTH), (1, 4 * WIDTH, WIDTH)):
            shapes[f"{block}MlpBlock_3/Dense_{dense}/kernel"] = (inputs, outputs)
            shapes[f"{block}MlpBlock_3/Dense_{dense}/bias"] = (outputs,)
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes[f"{block}{norm}/scale"] = shapes[f"{block}{norm}/bias"] = (WIDTH,)
    return {
        name: random.normal(0, 0.1, shape).astype(np.float32) + name.endswith("scale")
        for name, shape in shapes.items()
    }


def reference(tiles: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Return the features of tiles by equations 1 to 4 of the paper."""

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * weights[f"Transformer/{name}/scale"] + weights[f"Transformer/{name}/bias"]

    x = tiles.astype(np.float64) / 127.5 - 1
    rows, columns = (side // PATCH for side in x.shape[1:3])
    patches = [
        x[:, PATCH * row : PATCH * (row + 1), PATCH * column : PATCH * (column + 1)]
        for row in range(rows)
        for column in range(columns)
    ]
    kernel = weights["embedding/kernel"]
    embedded = [np.einsum("nyxc,yxcd->nd", patch, kernel) for patch in patches]
    z = np.stack(embedded, 1) + weights["embedding/bias"]
    z = np.concatenate([np.repeat(weights["cls"], len(x), axis=0), z], axis=1)
    z = z + weights["Transformer/posembed_input/pos_embedding"]
    for number in range(DEPTH):
        block = f"encoderblock_{number}"
        part = f"Transformer/{block}/MultiHeadDotProductAttention_1/"
        y = norm(z, f"{block}/LayerNorm_0")
        query, key, value = (
            np.einsum("ntd,dhk->nhtk", y, weights[f"{part}{name}/kernel"])
            + weights[f"{part}{name}/bias"][:, None]
            for name in ("query", "key", "value")
        )
        attention = softmax(query @ key.transpose(0, 1, 3, 2) / np.sqrt(WIDTH // HEADS), axis=-1)
        out = np.einsum("nhtk,hkd->ntd", attention @ value, weights[f"{part}out/kernel"])
        z = z + out + weights[f"{part}out/bias"]
        part = f"Transformer/{block}/MlpBlock_3/Dense_"
        y = norm(z, f"{block}/LayerNorm_2") @ weights[f"{part}0/kernel"] + weights[f"{part}0/bias"]
        y = y * (1 + erf(y / np.sqrt(2))) / 2
        z = z + y @ weights[f"{part}1/kernel"] + weights[f"{part}1/bias"]
    return norm(z, "encoder_norm")[:, 0]


def features(path, side: int) -> keras.Model:
    settings = TrainSettings(model="vit_tiny", weights=str(path))
    model = build_classifier(settings, side, 3).model
    return keras.Model(model.input, model.get_layer("logits").input)


def test_published_weights_compute_the_definition(tmp_path):
    weights = checkpoint(3)
    np.savez(tmp_path / "tiny.npz", **weights)
    tiles = np.random.default_rng(0).integers(0, 256, (2, 48, 48, 3), np.uint8)
    result = features(tmp_path / "tiny.npz", 48)(tiles)
    np.testing.assert_allclose(result, reference(tiles, weights), rtol=1e-3, atol=1e-3)


def test_positions_are_interpolated(tmp_path):
    """To the grid of the tiles: at its corners and its middle, they are those of the file."""
    weights = checkpoint(3)
    np.savez(tmp_path / "tiny.npz", **weights)
    model = features(tmp_path / "tiny.npz", 80)
    network = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    _, bias = network.get_layer("embedding").get_weights()
    assert bias.shape == (26, WIDTH)
    grid = bias[1:].reshape(5, 5, WIDTH) - weights["embedding/bias"]
    stored = weights["Transformer/posembed_input/pos_embedding"][0]
    np.testing.assert_allclose(grid[::2, ::2], stored[1:].reshape(3, 3, WIDTH), atol=1e-6)
    np.testing.assert_allclose(grid[0, 1], (stored[1] + stored[2]) / 2, atol=1e-6)
    np.testing.assert_allclose(bias[0], stored[0] + weights["cls"][0, 0], atol=1e-6)


def test_size_is_that_of_the_published_networks():
    for name, parameters in (("vit_tiny", 5_717_416), ("vit_small", 22_050_664)):
        width = SIZES[name].width
        model = build_classifier(TrainSettings(model=name), 224, 1000).model
        # Class token and position 0 are one vector here, and the bias of the patches is part of
        # their positions.
        assert model.count_params() == parameters - 2 * width


def test_wrong_files_and_sizes_are_one_message(tmp_path):
    with pytest.raises(UserError, match=r"tiles\.size: found 100; for .* a multiple of 16"):
        build_classifier(TrainSettings(model="vit_tiny"), 100, 3)
    with pytest.raises(UserError, match=r"no such file: .*nowhere\.npz"):
        features(tmp_path / "nowhere.npz", 32)
    (tmp_path / "text.npz").write_text("no weights")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", cls=np.array([{}], dtype=object))
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    wide = {name: np.repeat(values, 2, -1) for name, values in checkpoint(2).items()}
    np.savez(tmp_path / "wide.npz", **wide)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "wide.npz").read_bytes()[:9000])
    for name in ("text", "other", "pickled", "array", "wide", "cut"):
        with pytest.raises(UserError, match=rf"cannot load .*{name}\.npz .* of width 192"):
            features(tmp_path / f"{name}.npz", 32)


def test_imagenet_is_refused_as_there_is_nothing_to_download():
    with pytest.raises(ValueError, match=r"vit_tiny can start from a local \.npz file or"):
        TrainSettings(model="vit_tiny", weights="imagenet")
