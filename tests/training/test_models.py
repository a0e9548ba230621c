"""Models, their settings, and what a training writes."""

import json
import time

import keras
import numpy as np
import pytest
from trained import history

from gigatile.errors import UserError
from gigatile.models import names_of
from gigatile.models.applications import APPLICATIONS
from gigatile.models.classifier import build_classifier
from gigatile.models.saving import save_model
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.validation import validate
from gigatile.training.learner import check_network
from gigatile.training.ranks import Ranks
from gigatile.training.segments import Segment


@pytest.fixture(autouse=True)
def float32_again():
    yield
    keras.mixed_precision.set_dtype_policy("float32")


@pytest.mark.parametrize(
    ("name", "mixed"), [("small_cnn", False), *((name, True) for name in names_of("tile_features"))]
)
def test_scores_sum_to_one(name, mixed):
    settings = TrainSettings(model=name, mixed_precision=mixed)
    networks = build_classifier(settings, 64, 3)
    check_network(networks.trained, Ranks(0, 1, 1))
    model = networks.model
    tiles = np.random.default_rng(0).integers(0, 255, (2, 64, 64, 3), np.uint8)
    scores = model(tiles).numpy()
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)


def test_random_layers_are_refused():
    layers = keras.layers
    block = keras.Sequential([layers.Dense(4), layers.Dropout(0.5, seed=1)])
    network = keras.Sequential([layers.Input((3,)), block, layers.GaussianNoise(0.1)])
    with pytest.raises(ValueError, match=r"random layers .*: dropout.*, gaussian_noise"):
        check_network(network, Ranks(0, 1, 1))


def test_weights_none_means_random():
    assert TrainSettings.model_validate({"model": "resnet50", "weights": "none"}).weights is None


def test_initial_weights_depend_on_the_seed():
    first, same, other = (
        build_classifier(TrainSettings(seed=seed), 32, 3).model.get_weights() for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first[0], same[0])
    assert np.abs(first[0] - other[0]).max() > 0


def test_pretrained_weights_are_read_from_a_file(tmp_path):
    file = tmp_path / "resnet50.weights.h5"
    donor = keras.applications.ResNet50(include_top=False, weights=None, input_shape=(64, 64, 3))
    donor.save_weights(file)
    settings = TrainSettings(model="resnet50", weights=str(file))
    model = build_classifier(settings, 64, 3).model
    kernel = donor.get_layer("conv4_block2_2_conv").get_weights()[0]
    backbone = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    np.testing.assert_array_equal(
        backbone.get_layer("conv4_block2_2_conv").get_weights()[0], kernel
    )
    # A rank that gets its weights from rank 0 does not read them.
    other = build_classifier(settings, 64, 3, pretrained=False).model
    backbone = next(layer for layer in other.layers if isinstance(layer, keras.Model))
    assert np.abs(backbone.get_layer("conv4_block2_2_conv").get_weights()[0] - kernel).max() > 0


@pytest.mark.parametrize(
    ("name", "preprocess"),
    [
        ("densenet121", keras.applications.densenet.preprocess_input),
        ("efficientnetv2_b0", keras.applications.efficientnet_v2.preprocess_input),
        ("convnext_tiny", keras.applications.convnext.preprocess_input),
    ],
)
def test_applications_see_the_pixels_that_their_weights_expect(tmp_path, name, preprocess):
    application = APPLICATIONS[name]
    keras.utils.set_random_seed(5)
    stock = application.build(
        include_top=False, weights=None, input_shape=(64, 64, 3), pooling="avg"
    )
    stock.save_weights(tmp_path / "own.weights.h5")
    settings = TrainSettings(model=name, weights=str(tmp_path / "own.weights.h5"))
    model = build_classifier(settings, 64, 3).model
    features = keras.Model(model.input, model.get_layer("logits").input)
    tiles = np.random.default_rng(0).integers(0, 255, (2, 64, 64, 3)).astype(np.float32)
    expected = stock(preprocess(tiles.copy())).numpy()
    np.testing.assert_allclose(features(tiles), expected, rtol=1e-3, atol=1e-5)
    save_model(model, tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(again(tiles), model(tiles), rtol=1e-5)


def test_too_small_tiles_are_one_message():
    with pytest.raises(UserError, match=r"train\.model: DenseNet-121 cannot be built .*32x32"):
        build_classifier(TrainSettings(model="densenet121"), 16, 3)


def test_resnet18_has_the_parameters_of_torchvision():
    model = build_classifier(TrainSettings(model="resnet18"), 64, 1000).model
    # torchvision's ResNet-18, and the moving statistics of its 20 normalisations.
    assert model.count_params() == 11_689_512 + 2 * 4800


def test_saved_file_does_not_depend_on_the_time(tmp_path):
    model = build_classifier(TrainSettings(), 64, 3).model
    save_model(model, tmp_path / "one.keras")
    time.sleep(2)  # times in ZIP archives have a resolution of two seconds
    save_model(model, tmp_path / "two.keras")
    assert (tmp_path / "one.keras").read_bytes() == (tmp_path / "two.keras").read_bytes()
    loaded = keras.models.load_model(tmp_path / "two.keras", compile=False)
    for saved, read in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(saved, read)


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(UserError, match=r"train\.weights: no such file: .*nowhere\.h5"):
        build_classifier(
            TrainSettings(model="resnet50", weights=str(tmp_path / "nowhere.h5")), 64, 3
        )
    (tmp_path / "text.weights.h5").write_text("no weights")
    with pytest.raises(UserError, match=r"cannot load .*text\.weights\.h5"):
        build_classifier(
            TrainSettings(model="resnet50", weights=str(tmp_path / "text.weights.h5")), 64, 3
        )


def test_training_learns_and_describes_the_model(launcher, manifest, tmp_path):
    launcher.train(manifest, tmp_path, epochs=12, learning_rate=0.003)
    segment = Segment(tmp_path / "segments", 12)
    described = json.loads(segment.described.read_text())
    assert [row[0] for row in described["history"]] == list(range(1, 13))
    valid = validate(segment, manifest, {})
    assert valid.means["accuracy"] > 0.9, "three textures are easy to distinguish"
    assert described["classes"] == ["coarse", "fine", "plain"]
    assert described["train"]["learning_rate"] == 0.003
    assert len(described["inputs"]["shards/manifest.json"]) == 64
    assert described["versions"]["keras"] == keras.__version__


@pytest.mark.parametrize("half", [pytest.param("float16", marks=pytest.mark.long), "bfloat16"])
def test_mixed_precision_trains_on_two_ranks(launcher, manifest, tmp_path, half):
    launcher.train(manifest, tmp_path, ranks=2, mixed_precision=half)
    (_, first, _), (_, second, _) = history(tmp_path / "segments")
    assert np.isfinite(first) and second < first


def test_infinite_loss_stops_with_advice(launcher, manifest, tmp_path):
    done = launcher.train(manifest, tmp_path, check=False, learning_rate=1e30)
    assert done.returncode != 0
    assert "lower train.learning_rate" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("segments/*"))


def test_damaged_shard_is_named(launcher, manifest, tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for path in manifest.parent.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    shard = sorted(folder.glob("train-*.tfrecord"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 4
    shard.write_bytes(data)
    done = launcher.train(folder / "manifest.json", tmp_path, check=False)
    assert done.returncode != 0
    assert shard.name in done.stderr and "checksum" in done.stderr
    assert "Traceback" not in done.stderr
