"""The saved model defines what the windows compute, also in mixed precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_slide_pixels import GLASS
from test_two_passes import AGGREGATORS, random_tissue

from gigatile.files import sha256_of
from gigatile.models.saving import load_model, save_model
from gigatile.models.slide_classifier import build_slide_classifier, parts_of
from gigatile.records.tile import decode_jpeg, encode_jpeg
from gigatile.settings.train import TrainSettings
from gigatile.whole_slides.receptive_field import FieldsBySize, receptive_field
from gigatile.whole_slides.slide_pixels import StoredSlide
from gigatile.whole_slides.two_passes import TwoPasses
from gigatile.whole_slides.windows import divide

SIZE = 80
CELLS = np.array([[0, 1, -1, 2], [-1, 3, 4, -1], [5, -1, -1, -1]])


def jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (10, 10, 3), np.uint8)
    return encode_jpeg(np.kron(pixels, np.ones((SIZE // 10, SIZE // 10, 1), np.uint8)), 90)


def classifier(aggregator: str, **settings):
    """Build a classifier of which the attention differs by position."""
    networks = build_slide_classifier(TrainSettings(model="whole_small", **settings), aggregator, 3)
    for weight in networks.trained.get_layer("attention").weights if aggregator[0] == "a" else ():
        weight.assign(3 * weight)
    return networks


def slide_and_pixels():
    slide = StoredSlide(CELLS, SIZE, jpeg, lambda number, fault: ValueError(fault))
    pixels = np.full((*slide.shape, 3), GLASS, np.uint8)
    for (row, column), number in np.ndenumerate(CELLS):
        if number >= 0:
            area = np.s_[row * SIZE : (row + 1) * SIZE, column * SIZE : (column + 1) * SIZE]
            pixels[area] = decode_jpeg(jpeg(number))
    return slide, pixels


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_windows_give_the_logits_of_the_saved_model(aggregator, tmp_path):
    networks = classifier(aggregator)
    slide, pixels = slide_and_pixels()
    path = tmp_path / "model.keras"
    save_model(networks.model, path)
    loaded = load_model(path, sha256_of(path), path)
    expected = None
    for network in (networks.trained, loaded):
        parts = parts_of(network, aggregator)
        picture = slide.picture(FieldsBySize(parts.encoder).get(*slide.shape), 150)
        assert len(picture.windows) > 3 and not picture.tissue.all()
        (state,) = TwoPasses(parts.encoder, parts.aggregator).pool([picture])
        pooled = parts.aggregator.pooled(state).astype(np.float32)
        logits = parts.logits(pooled[None]).numpy()
        tissue = picture.tissue[None, ..., None].astype(np.float32)
        if expected is None:
            expected = networks.trained([pixels[None], tissue]).numpy()
            everywhere = networks.trained([pixels[None], np.ones_like(tissue)]).numpy()
            assert np.abs(everywhere - expected).max() > 1e-3
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        for model in (networks.model, loaded):
            scores = model([pixels[None], tissue]).numpy()
            np.testing.assert_allclose(scores, tf.nn.softmax(logits), rtol=1e-4)


def test_resnet50_is_local():
    """Random weights; the encoder has its own preprocessing and frozen normalisations."""
    keras.mixed_precision.set_dtype_policy("float32")
    settings = TrainSettings(model="whole_resnet50", weights=None)
    encoder = build_slide_classifier(settings, "mean", 2).trained.get_layer("encoder")
    height, width = 50, 650
    fields = receptive_field(encoder, height, width)
    assert [(field.size, field.stride) for field in fields] == [(2, 32), (21, 32)]
    pixels = np.random.default_rng(0).integers(0, 255, (1, height, width, 3), np.uint8)
    whole = encoder(pixels, training=True).numpy()[0]
    assert whole.shape == (2, 21, 2048)
    assert not any("bn" in weight.path for weight in encoder.trainable_variables)
    windows = divide(fields, height, width, 11)
    assert len(windows) == 2
    for window in windows:
        part = slice(*window.columns.pixels)
        assert part.stop - part.start < width
        outputs = encoder(pixels[:, :, part], training=True).numpy()[0]
        first, (start, stop) = window.columns.offset, window.columns.outputs
        exact = outputs[:, first : first + stop - start]
        np.testing.assert_allclose(exact, whole[:, start:stop], atol=1e-3 * np.abs(whole).max())


def gradients_of(aggregator: str, of_pooled: np.ndarray, mixed: bool) -> np.ndarray:
    """Return the gradients of all weights in one vector."""
    parts = parts_of(classifier(aggregator, mixed_precision=mixed).trained, aggregator)
    slide, _ = slide_and_pixels()
    picture = slide.picture(FieldsBySize(parts.encoder).get(*slide.shape), 150)
    passes = TwoPasses(parts.encoder, parts.aggregator)
    states = passes.pool([picture])
    gradients, _ = passes.gradients([picture], states, of_pooled[None].astype(np.float32))
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


@pytest.mark.parametrize("aggregator", ["mean", "attention"])
def test_mixed_precision_gradients_need_the_loss_scale(aggregator):
    """Without the scale, these small gradients are zero in half precision."""
    of_pooled, scale = 1e-6 * np.random.default_rng(1).normal(size=128), 2.0**15
    expected = gradients_of(aggregator, of_pooled, mixed=False)
    scaled = gradients_of(aggregator, scale * of_pooled, mixed=True) / scale
    unscaled = gradients_of(aggregator, of_pooled, mixed=True)
    assert np.isfinite(scaled).all()
    norm = np.linalg.norm(expected)
    assert np.linalg.norm(scaled - expected) < 5e-2 * norm
    assert np.linalg.norm(unscaled - expected) > 0.1 * norm


def test_mixed_precision_embeddings_are_pooled_in_single_precision():
    networks = classifier("max", mixed_precision=True)
    parts = parts_of(networks.trained, "max")
    fields = receptive_field(parts.encoder, 64, 96)
    tissue = random_tissue(fields, 1)
    pixels = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    passes = TwoPasses(parts.encoder, parts.aggregator)
    embeddings = passes.embed(pixels, tissue, np.zeros(2, np.int32))
    assert parts.encoder(pixels[None]).dtype == tf.float16 and embeddings.dtype == tf.float32
    assert networks.trained.output.dtype == parts.logits.compute_dtype == "float32"
