"""Encoders give what their files compute, for any tile alone, and bad files are refused."""

from pathlib import Path

import cv2
import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_encoder import write_tiny_encoder

from gigatile.embeddings.encoder_files import encoder_checksum, encoder_files, encoder_id
from gigatile.embeddings.encoders import BATCH, open_encoder
from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.settings.encoder import EncoderSettings

PLAIN = EncoderSettings()
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def tiles_of(count: int, side: int = 128) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, side, side, 3), np.uint8)


def means_of(pixels: np.ndarray) -> np.ndarray:
    """Return what the tiny encoder computes: (n, 48), channel by channel."""
    side = pixels.shape[1] // 4
    parts = pixels.reshape(len(pixels), 4, side, 4, side, 3).mean(axis=(2, 4))
    return parts.transpose(0, 3, 1, 2).reshape(len(pixels), 48)


@pytest.mark.parametrize("channels_first", [False, True])
def test_pixels_are_given_as_they_are(tmp_path: Path, channels_first: bool) -> None:
    path = write_tiny_encoder(tmp_path / "tiny.onnx", channels_first=channels_first)
    encoder = open_encoder(path, PLAIN, 128)
    tiles = tiles_of(5)
    assert (encoder.size, encoder.dimensions) == (128, 48)
    embeddings = encoder.embed(encoder.input_of(tiles))
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, means_of(tiles.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("options", [{"batch": 1}, {"batch": 8}, {"with_parts": True}])
def test_files_with_a_fixed_batch_or_several_outputs(tmp_path: Path, options: dict) -> None:
    encoder = open_encoder(write_tiny_encoder(tmp_path / "tiny.onnx", **options), PLAIN, 128)
    assert encoder.batch == options.get("batch", BATCH)
    tiles = tiles_of(encoder.batch)
    embeddings = encoder.embed(encoder.input_of(tiles))
    np.testing.assert_allclose(embeddings, means_of(tiles.astype(np.float64)), rtol=1e-5)
    # A last batch is filled up.
    fewer = encoder.embed(encoder.input_of(tiles[: encoder.batch // 2 + 1]))
    np.testing.assert_array_equal(fewer, embeddings[: encoder.batch // 2 + 1])


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("side", [128, 256])
def test_pixels_are_scaled_by_mean_and_deviation(
    tmp_path: Path, channels_first: bool, half: bool, side: int
) -> None:
    settings = EncoderSettings(mean=MEAN, deviation=DEVIATION)
    path = write_tiny_encoder(tmp_path / "tiny.onnx", channels_first=channels_first, half=half)
    encoder = open_encoder(path, settings, side)
    tiles = tiles_of(3, side)
    small = tiles
    if side > 128:
        small = np.stack([cv2.resize(tile, (128, 128), interpolation=3) for tile in tiles])
    scaled = (small / 255 - np.array(MEAN)) / np.array(DEVIATION)
    expected = scaled.transpose(0, 3, 1, 2) if channels_first else scaled
    memory = encoder.new_input()
    memory[:] = np.nan
    for some in (tiles_of(BATCH, side), tiles):  # the memory is used again
        inputs = encoder.input_of(some, memory)
    assert inputs.dtype == (np.float16 if half else np.float32)
    tolerance = 1e-3 if half else 1e-6
    np.testing.assert_allclose(inputs, expected, atol=tolerance, rtol=tolerance)
    np.testing.assert_array_equal(inputs, encoder.input_of(tiles))
    np.testing.assert_allclose(encoder.embed(inputs), means_of(scaled), atol=5 * tolerance)


def test_tiles_of_another_size_are_resized(tmp_path: Path) -> None:
    encoder = open_encoder(write_tiny_encoder(tmp_path / "tiny.onnx", 64), PLAIN, 128)
    assert encoder.size == 64
    tiles = tiles_of(2)
    halved = tiles.reshape(2, 64, 2, 64, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(encoder.input_of(tiles), halved, atol=0.5)
    enlarged = encoder.input_of(tiles_of(1, 32))[0]
    expected = cv2.resize(tiles_of(1, 32)[0], (64, 64), interpolation=cv2.INTER_CUBIC)
    np.testing.assert_array_equal(enlarged, expected)


def test_an_embedding_does_not_depend_on_the_other_tiles(shared_data: Path) -> None:
    path = shared_data / "models/efficientnet_lite0_imagenet.onnx"
    encoder = open_encoder(path, PLAIN, 224)
    pixels = encoder.input_of(tiles_of(BATCH, 224))
    together = encoder.embed(pixels)
    for number in (0, 7, BATCH - 1):
        np.testing.assert_array_equal(
            encoder.embed(pixels[number : number + 1])[0], together[number]
        )
    two = open_encoder(path, PLAIN, 224, cores=2).embed(pixels)
    np.testing.assert_array_equal(two, together)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"pixels": pixels})
    np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_of_keras(tmp_path: Path) -> None:
    tiles = keras.Input((None, None, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(7, 3)(tiles))
    model = keras.Model(tiles, pooled)
    model.save(tmp_path / "mine.keras")
    encoder = open_encoder(tmp_path / "mine.keras", PLAIN, 96)
    assert (encoder.size, encoder.dimensions) == (96, 7)
    pixels = encoder.input_of(tiles_of(3, 96))
    np.testing.assert_allclose(
        encoder.embed(pixels), model.predict(pixels, verbose=0), rtol=1e-4, atol=1e-4
    )


def graph_of(inputs: list, outputs: list, nodes: list, tensors: list = ()) -> onnx.ModelProto:
    infos = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in some]
        for some in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "bad", *infos, list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_other_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_text("no model")
    with pytest.raises(UserError, match=r"bad\.onnx: not an ONNX file"):
        encoder_files(path)
    with pytest.raises(UserError, match=r"bad\.onnx: cannot be loaded by ONNX Runtime"):
        open_encoder(path, PLAIN, 64)
    pixels = ("pixels", ["n", 64, 64, 3])
    same = helper.make_node("Identity", ["pixels"], ["out"])
    onnx.save(graph_of([pixels], [("out", pixels[1])], [same]), path)
    with pytest.raises(UserError, match=r"returns the shape \(32, 64, 64, 3\) for 32 tiles"):
        open_encoder(path, PLAIN, 64)
    both = helper.make_node("Add", ["pixels", "more"], ["out"])
    onnx.save(graph_of([pixels, ("more", pixels[1])], [("out", pixels[1])], [both]), path)
    with pytest.raises(UserError, match=r"has the inputs pixels .*, more .*; must have one"):
        open_encoder(path, PLAIN, 64)
    with pytest.raises(UserError, match=r"does not take 32 tiles of 100 px .* set encoder\.size"):
        open_encoder(write_tiny_encoder(tmp_path / "tiny.onnx", 64), EncoderSettings(size=100), 64)
    (tmp_path / "bad.keras").write_bytes(b"PK no archive")
    with pytest.raises(UserError, match=r"bad\.keras: cannot be loaded by Keras"):
        open_encoder(tmp_path / "bad.keras", PLAIN, 64)
    with pytest.raises(UserError, match=r"encoder\.file: no such file: .*missing\.onnx"):
        encoder_files(tmp_path / "missing.onnx")


def test_models_that_fail_when_they_compute_are_refused(tmp_path: Path) -> None:
    encoder = open_encoder(write_tiny_encoder(tmp_path / "tiny.onnx", fails=True), PLAIN, 128)
    with pytest.raises(UserError, match=r"tiny\.onnx: does not take 32 tiles of 128 px"):
        encoder.embed(encoder.input_of(tiles_of(2)))


def test_other_dimensions_than_the_file_says_are_refused(tmp_path: Path) -> None:
    """ONNX Runtime only warns of them, if the shape is known when it computes and not before."""
    shape = [
        helper.make_node("ReduceMean", ["pixels"], ["means"], axes=[1, 2], keepdims=0),
        helper.make_node("Shape", ["means"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["number"], ["again"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["means", "again"], ["out"]),
    ]
    path = tmp_path / "seven.onnx"
    onnx.save(graph_of([("pixels", ["n", 64, 64, 3])], [("out", ["n", 7])], shape), path)
    encoder = open_encoder(path, PLAIN, 64)
    assert encoder.dimensions == 7
    with pytest.raises(UserError, match=r"returns the shape \(32, 3\) for 32 .* be \(32, 7\)"):
        encoder.embed(encoder.input_of(tiles_of(2, 64)))


def test_more_tiles_than_a_batch_are_refused(tmp_path: Path) -> None:
    encoder = open_encoder(write_tiny_encoder(tmp_path / "tiny.onnx", batch=8), PLAIN, 128)
    with pytest.raises(ValueError):
        encoder.input_of(tiles_of(9))


def test_code_in_a_keras_file_is_refused(tmp_path: Path) -> None:
    tiles = keras.Input((8, 8, 3))
    outputs = keras.layers.Lambda(lambda pixels: pixels[:, 0, 0])(tiles)
    keras.Model(tiles, outputs).save(tmp_path / "code.keras")
    with pytest.raises(UserError, match=r"code\.keras: cannot be loaded by Keras"):
        open_encoder(tmp_path / "code.keras", PLAIN, 8)


def with_external_weights(path: Path, location: str) -> Path:
    """Write the tiny encoder with its bias in another file."""
    model = onnx.load(write_tiny_encoder(path))
    bias, _ = model.graph.initializer
    values = numpy_helper.to_array(bias)
    bias.ClearField("raw_data")
    bias.data_location = TensorProto.EXTERNAL
    bias.external_data.add(key="location", value=location)
    (path.parent / Path(location).name).write_bytes(values.tobytes())
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_in_another_file_count(tmp_path: Path) -> None:
    path = with_external_weights(tmp_path / "large.onnx", "large.weights")
    weights = tmp_path / "large.weights"
    assert encoder_files(path) == [path, weights]
    first = encoder_checksum(path)
    weights.write_bytes(np.ones(48, np.float32).tobytes())
    assert encoder_checksum(path) != first
    pixels = np.zeros((1, 128, 128, 3), np.float32)
    np.testing.assert_array_equal(open_encoder(path, PLAIN, 128).embed(pixels), np.ones((1, 48)))
    weights.unlink()
    with pytest.raises(UserError, match=r"has weights in large\.weights, which does not exist"):
        encoder_files(path)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "sub/weights"])
def test_weights_in_another_folder_are_refused(tmp_path: Path, location: str) -> None:
    path = with_external_weights(tmp_path / "large.onnx", location)
    with pytest.raises(UserError, match=r"they must be in a file in the same folder"):
        encoder_files(path)


def test_what_identifies_an_encoder(tmp_path: Path) -> None:
    path = write_tiny_encoder(tmp_path / "tiny.onnx")
    checksum = encoder_checksum(path)
    assert checksum == sha256_of(path)
    known = encoder_id(checksum, PLAIN, 128)
    assert known == encoder_id(checksum, EncoderSettings(name="UNI", licence="x", cores=8), 128)
    others = [
        encoder_id(checksum[::-1], PLAIN, 128),
        encoder_id(checksum, PLAIN, 224),
        encoder_id(checksum, EncoderSettings(size=64), 128),
        encoder_id(checksum, EncoderSettings(mean=MEAN, deviation=DEVIATION), 128),
    ]
    assert len({known, *others}) == 5
