"""Exports give the scores of the model, or are not kept."""

import io

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from bundles import make_bundle
from PIL import Image

from gigatile.bundle import exports
from gigatile.bundle.contents import ONNX, SAVED_MODEL
from gigatile.models.unet import build as build_unet
from gigatile.records import Tile
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.scoring import TileClassifier


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A classifier, and the folder of its exports."""
    bundle = make_bundle(tmp_path_factory.mktemp("tiny"), classes=("a", "b", "c"))
    folder = tmp_path_factory.mktemp("exports")
    model = keras.models.load_model(bundle.model, compile=False)
    return bundle, folder, exports.write_exports(model, "tile_classification", folder)


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return buffer.getvalue()


def tiles_of(random: np.random.Generator, number: int, kind: str = "JPEG") -> list[Tile]:
    """Return tiles with coloured structure, as records have them."""
    tiles = []
    for index in range(number):
        coarse = random.integers(0, 256, (8, 8, 3), np.uint8)
        pixels = np.asarray(Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC))
        tiles.append(Tile(encoded(pixels, kind), "s", index, 0, 64.0, None, 1.0))
    return tiles


def test_exports_were_compared(exported):
    _, _, compared = exported
    assert set(compared) == {SAVED_MODEL, ONNX}
    for export in compared.values():
        assert export.missing is None and export.inputs == 16
        assert export.difference <= export.tolerance == 1e-4


@pytest.mark.parametrize("number", [1, 5])
def test_scores_are_those_of_the_classifier(exported, number):
    """On other tiles, and in batches of another size, than those of the comparison."""
    bundle, folder, compared = exported
    tiles = tiles_of(np.random.default_rng(number), number)
    expected = TileClassifier(bundle.model, bundle.described).score(tiles)
    pixels = np.stack([tile.pixels() for tile in tiles])
    loaded = tf.saved_model.load(folder / SAVED_MODEL)
    served = loaded.signatures["serving_default"](tiles=tf.constant(pixels))["scores"]
    session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["tiles"]
    onnx = session.run(["scores"], {"tiles": pixels})[0]
    files = tf.constant([tile.image for tile in tiles])
    from_files = loaded.signatures["encoded"](image_bytes=files)["scores"]
    for scores, name in ((served, SAVED_MODEL), (from_files, SAVED_MODEL), (onnx, ONNX)):
        assert np.abs(np.asarray(scores) - expected).max() <= compared[name].tolerance
    assert np.ptp(expected) > 0.01, "all tiles look the same to the model"


def test_encoded_tiles_are_decoded_as_in_training(exported):
    """PNG, too; a tile of another size is refused."""
    bundle, folder, _ = exported
    tiles = tiles_of(np.random.default_rng(3), 2, "PNG")
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(tile.image))) for tile in tiles])
    encode = tf.saved_model.load(folder / SAVED_MODEL).signatures["encoded"]
    model = keras.models.load_model(bundle.model, compile=False)
    scores = encode(image_bytes=tf.constant([tile.image for tile in tiles]))["scores"]
    np.testing.assert_allclose(scores, model(pixels), atol=1e-4)
    small = encoded(np.zeros((32, 64, 3), np.uint8), "PNG")
    with pytest.raises(tf.errors.InvalidArgumentError):
        encode(image_bytes=tf.constant([small]))


def test_volumes_are_exported(tmp_path):
    settings = TrainSettings(model="small_unet", epochs=1, segment_epochs=1, batch_size=2)
    model = build_unet(settings, (16, 16, 16), 2, 3, "sigmoid").model
    compared = exports.write_exports(model, "volume_segmentation", tmp_path)
    assert all(export.missing is None for export in compared.values())
    random = np.random.default_rng(1).normal(size=(2, 16, 16, 16, 2)).astype(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / ONNX, providers=["CPUExecutionProvider"])
    difference = np.abs(session.run(None, {"volumes": random})[0] - model(random).numpy()).max()
    assert difference <= compared[ONNX].tolerance


def test_export_with_other_scores_is_not_kept(exported, tmp_path, monkeypatch):
    bundle, _, _ = exported
    model = keras.models.load_model(bundle.model, compile=False)
    monkeypatch.setattr(exports, "TOLERANCES", {"tile_classification": -1.0})
    compared = exports.write_exports(model, "tile_classification", tmp_path)
    assert all("more than -1" in (export.missing or "") for export in compared.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", ["slide_classification", "instance_segmentation"])
def test_tasks_without_exports_say_why(exported, tmp_path, task):
    model = keras.models.load_model(exported[0].model, compile=False)
    compared = exports.write_exports(model, task, tmp_path)
    assert all(export.missing for export in compared.values()) and not list(tmp_path.iterdir())


def test_layers_that_the_converter_does_not_know_are_exported(tmp_path):
    """As the published networks have them: GELU, grouped convolutions, constants of a layer."""
    layers = keras.layers
    tiles = keras.Input((32, 32, 3))
    x = layers.Normalization(mean=[120.0, 100, 90], variance=[900.0, 400, 100])(tiles)
    x = layers.Conv2D(9, 3, groups=3, activation="gelu")(x)
    x = layers.Conv2D(4, 3, strides=2, activation="gelu")(x)
    scores = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(tiles, scores)
    compared = exports.write_exports(model, "tile_classification", tmp_path)
    assert compared[ONNX].missing is None and compared[ONNX].difference < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / ONNX)
    assert [given.name for given in session.get_inputs()] == ["tiles"]
    pixels = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), np.uint8)
    (result,) = session.run(None, {"tiles": pixels})
    np.testing.assert_allclose(result, model(pixels.astype("f4")), atol=1e-5)


def test_a_model_that_cannot_be_converted_has_a_reason(tmp_path):
    tiles = keras.Input((32, 32, 3))
    mean = layers_of_no_converter(tiles)
    model = keras.Model(tiles, keras.layers.Dense(2, activation="softmax")(mean))
    compared = exports.write_exports(model, "tile_classification", tmp_path)
    assert compared[SAVED_MODEL].missing is None
    assert compared[ONNX].missing.startswith("the model cannot be converted (")
    assert not (tmp_path / ONNX).exists()


def layers_of_no_converter(tiles: keras.KerasTensor) -> keras.KerasTensor:
    """Return features that no ONNX op computes: the logarithm of the gamma function."""

    class LogGamma(keras.layers.Layer):
        def call(self, values):
            return tf.math.lgamma(values + 1)

    return keras.layers.GlobalAveragePooling2D()(LogGamma()(tiles))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_full_disk_is_not_a_fault_of_the_model(tmp_path, monkeypatch, error):
    """Then the bundle is not written, and can be tried again."""

    def fails(model, spec, path):
        raise error

    monkeypatch.setattr(exports, "_write_onnx", fails)
    tiles = keras.Input((32, 32, 3))
    scores = keras.layers.Dense(2, activation="softmax")(
        keras.layers.GlobalAveragePooling2D()(tiles)
    )
    with pytest.raises(type(error)):
        exports.write_exports(keras.Model(tiles, scores), "tile_classification", tmp_path)
