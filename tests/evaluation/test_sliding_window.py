"""Sliding windows: the scores of a whole volume, slab by slab, in bounded memory."""

import json
import tracemalloc
from itertools import product

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from volume_set import blurring, copying, opened, write_model, write_record

from gigatile.errors import UserError
from gigatile.settings.patches import PatchSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter, _starts, score_volume

NAMES = ("a", "b", "c")
VOLUMES = VolumeSettings(labels="decathlon", modalities=NAMES)
WINDOW = (16, 24, 16)
PATCHES = PatchSettings(size=WINDOW)


def segmenter_of(folder, model, volumes=VOLUMES, patches=PATCHES) -> Segmenter:
    return Segmenter(*write_model(folder, model, volumes, patches))


@pytest.fixture(scope="module")
def copier(tmp_path_factory) -> Segmenter:
    return segmenter_of(tmp_path_factory.mktemp("copying"), copying(WINDOW, 3))


@pytest.fixture(scope="module")
def blurrer(tmp_path_factory) -> Segmenter:
    return segmenter_of(tmp_path_factory.mktemp("blurring"), blurring(WINDOW, 3, 3))


def recorded(folder, shape, channels=NAMES, empty=0.3):
    """Return an image of random scores, 0 at one end, and its record."""
    random = np.random.default_rng([*shape])
    image = random.random((*shape, len(channels))).astype(np.float16)
    image[int((1 - empty) * shape[0]) :] = 0
    return image, opened(write_record(folder / "volume", "C1", image, None, channels))


def whole(segmenter, record, **how) -> np.ndarray:
    return np.concatenate(list(score_volume(segmenter, record, WindowSettings(**how))))


# --- Windows


@given(side=st.integers(1, 400), window=st.integers(16, 128), overlap=st.floats(0, 0.875))
def test_windows_are_evenly_spaced_and_as_few_as_possible(side, window, overlap):
    starts = _starts(side, window, overlap)
    if side <= window:
        assert starts == [0]
        return
    gaps = np.diff(starts)
    assert (starts[0], starts[-1]) == (0, side - window)
    assert gaps.min() > 0 and gaps.max() <= max(1, int(window * (1 - overlap)))
    assert gaps.max() - gaps.min() <= 1
    # With one window less, the gaps would be too wide.
    assert (len(starts) - 2) * max(1, int(window * (1 - overlap))) < side - window


def test_known_first_voxels_of_windows():
    assert _starts(40, 16, 0.5) == [0, 8, 16, 24]
    assert _starts(33, 16, 0.5) == [0, 6, 11, 17]
    assert _starts(33, 16, 0) == [0, 8, 17]
    assert _starts(16, 16, 0.5) == _starts(3, 16, 0.5) == [0]


# --- Scores of volumes


@pytest.mark.parametrize("shape", [(40, 33, 19), (16, 24, 16), (9, 50, 16), (5, 7, 3), (70, 1, 17)])
@pytest.mark.parametrize("how", [{}, {"overlap": 0}, {"overlap": 0.8}, {"flips": True}])
def test_copying_model_returns_the_volume(copier, tmp_path, shape, how):
    """For any overlap, size and flips, and for volumes that are smaller than a window."""
    image, record = recorded(tmp_path, shape)
    slabs = list(score_volume(copier, record, WindowSettings(**how)))
    for slab in slabs:
        assert (slab.dtype, slab.shape[1:]) == (np.float32, (*shape[1:], 3))
        assert 0 < len(slab) <= WINDOW[0]
    assert sum(map(len, slabs)) == shape[0]
    np.testing.assert_allclose(np.concatenate(slabs), image, rtol=1e-5, atol=1e-7)


def gaussian(window) -> np.ndarray:
    """Return the weight of each voxel of a window, computed voxel by voxel."""
    weights = np.empty(window)
    for index in np.ndindex(*window):
        parts = [((p - (w - 1) / 2) / (w / 8)) ** 2 for p, w in zip(index, window, strict=True)]
        weights[index] = np.exp(-sum(parts) / 2)
    return weights


@pytest.mark.parametrize("flips", [False, True])
def test_overlapping_windows_are_averaged_by_weight(blurrer, tmp_path, flips):
    """Equal to the sum over all windows and their flips, in an array of the whole volume."""
    shape, starts = (40, 33, 19), ([0, 8, 16, 24], [0, 9], [0, 3])
    image, record = recorded(tmp_path, shape)
    weights = gaussian(WINDOW)
    sums, total = np.zeros((*shape, 3)), np.zeros(shape)
    for start in product(*starts):
        box = tuple(slice(a, a + b) for a, b in zip(start, WINDOW, strict=True))
        part, scores = image[box], np.zeros((*WINDOW, 3))
        steps = list(product((1, -1), repeat=3)) if flips else [(1, 1, 1)]
        for x, y, z in steps if part.any() else []:
            flipped = part[::x, ::y, ::z][None]
            scores += blurrer._model(flipped).numpy()[0, ::x, ::y, ::z] / len(steps)
        sums[box] += scores * weights[..., None]
        total[box] += weights
    actual = whole(blurrer, record, flips=flips)
    np.testing.assert_allclose(actual, sums / total[..., None], atol=2e-5)


def test_volume_smaller_than_a_window_is_padded_with_zeros(blurrer, tmp_path):
    image, record = recorded(tmp_path, (10, 24, 5), empty=0)
    padded = np.zeros((1, *WINDOW, 3), np.float16)
    padded[0, :10, :, :5] = image
    expected = blurrer._model(padded).numpy()[0, :10, :, :5]
    np.testing.assert_allclose(whole(blurrer, record), expected, atol=1e-6)


def test_scores_are_reproducible_to_the_bit(blurrer, tmp_path):
    _, record = recorded(tmp_path, (30, 26, 20))
    np.testing.assert_array_equal(whole(blurrer, record), whole(blurrer, record))


def test_window_without_head_is_background(blurrer, tmp_path):
    _, record = recorded(tmp_path, (64, 24, 16), empty=0.5)
    scores = whole(blurrer, record, overlap=0)
    assert not scores[32:].any() and scores[:32].min() > 0
    labels = VOLUMES.model_copy(update={"regions": "labels"})
    other = segmenter_of(
        tmp_path, blurring(WINDOW, 3, 4), labels, PatchSettings(size=WINDOW, targets="labels")
    )
    scores = whole(other, record, overlap=0)[32:]
    assert (scores[..., 0] == 1).all() and not scores[..., 1:].any(), "background"
    assert not other.decide(scores).any()


def test_memory_does_not_depend_on_the_length_of_a_volume(copier, tmp_path):
    peaks = []
    for length in (64, 640):
        (tmp_path / str(length)).mkdir()
        _, record = recorded(tmp_path / str(length), (length, 48, 40))
        slabs = score_volume(copier, record, WindowSettings())
        next(slabs)  # builds the graph
        tracemalloc.start()
        for _ in slabs:
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    slab = 16 * 48 * 40 * 4 * 4  # sums and their weights
    assert peaks[0] < 5 * slab


# --- Errors


def test_other_channels_are_refused(copier, tmp_path):
    _, record = recorded(tmp_path, (20, 20, 20), ("a", "c", "b"))
    with pytest.raises(
        UserError, match=r"case C1: has the channels a, c, b, but the model takes a, b, c;"
    ):
        copier.check(record)
    (tmp_path / "right").mkdir()
    copier.check(recorded(tmp_path / "right", (20, 20, 20))[1])


def test_model_of_another_task_is_refused(tmp_path):
    model, described = write_model(tmp_path, copying(WINDOW, 3), VOLUMES, PATCHES)
    other, _ = write_model(tmp_path, blurring(WINDOW, 3, 3), VOLUMES, PATCHES, "other")
    with pytest.raises(UserError, match=r"other\.keras: is not the model that .*model\.json desc"):
        Segmenter(other, described)
    values = json.loads(described.read_text())
    described.write_text(json.dumps({"classes": ["a"], "tiles": {}}))
    with pytest.raises(UserError, match=r"model\.json: damaged, or not .*volumes: Field required"):
        Segmenter(model, described)
    values["volumes"]["regions"] = {"all": ["unheard"]}
    described.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"model\.json: 1 invalid .*\n.*regions: all has 'unheard'"):
        Segmenter(model, described)
    with pytest.raises(UserError, match=r"gone\.json: no such file"):
        Segmenter(model, tmp_path / "gone.json")


@pytest.mark.parametrize("content", [b"", b"no model", b"PK\x03\x04 truncated", None])
def test_error_names_a_damaged_model_file(tmp_path, content):
    model, described = write_model(tmp_path, copying(WINDOW, 3), VOLUMES, PATCHES)
    model.write_bytes(model.read_bytes()[:-400] if content is None else content)
    with pytest.raises(UserError, match=r"model\.keras: cannot be loaded"):
        Segmenter(model, described)


def test_model_that_contains_code_is_refused(tmp_path):
    images = keras.Input((*WINDOW, 3))
    model = keras.Model(images, keras.layers.Lambda(lambda x: x * 2)(images))
    with pytest.raises(UserError, match=r"model\.keras: cannot be loaded"):
        segmenter_of(tmp_path, model)
