"""Components of segmentations are removed if that improves the Dice of the validation."""

import json

import numpy as np
import pytest
from scipy import ndimage
from volume_set import copying, write_model, write_set

from gigatile.settings.patches import PatchSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.tasks.volume_segmentation.choice import complete
from gigatile.tasks.volume_segmentation.components import (
    ALL,
    CANDIDATES,
    Kept,
    choose_kept,
    keep_components,
    mean_dice,
)
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter

REGIONS = {"whole": [1, 2], "core": [2]}


def drawn(*boxes) -> np.ndarray:
    """Return boxes along a line: first and last voxel, and label."""
    labels = np.zeros((40, 8, 8), np.uint8)
    for first, last, label in boxes:
        labels[first : last + 1, 2:5, 2:5] = label
    return labels


def test_components_may_have_several_labels():
    both = drawn((0, 3, 1), (4, 6, 2), (20, 24, 2))  # 63 and 45 voxels
    for kept, expected in (
        (ALL, both),
        (Kept(largest_only=True), drawn((0, 3, 1), (4, 6, 2))),
        (Kept(smallest_mm3=46), drawn((0, 3, 1), (4, 6, 2))),
        (Kept(smallest_mm3=45), both),
        (Kept(smallest_mm3=64), drawn()),
    ):
        before = both.copy()
        np.testing.assert_array_equal(keep_components(both, 1.0, kept), expected)
        np.testing.assert_array_equal(both, before)
    np.testing.assert_array_equal(keep_components(both, 0.1, Kept(smallest_mm3=4.5)), both)
    empty = drawn()
    for kept in CANDIDATES:
        np.testing.assert_array_equal(keep_components(empty, 1.0, kept), empty)


@pytest.mark.parametrize("seed", range(20))
def test_kept_components_are_those_of_a_direct_count(seed):
    random = np.random.default_rng(seed)
    labels = (random.random((12, 10, 9)) < 0.12) * random.integers(1, 4, (12, 10, 9))
    labels = labels.astype(np.uint8)
    parts, count = ndimage.label(labels, np.ones((3, 3, 3)))
    sizes = [(parts == number).sum() for number in range(1, count + 1)]
    voxel, smallest = random.uniform(0.5, 3), random.uniform(1, 20)
    seen = keep_components(labels, voxel, Kept(smallest_mm3=smallest))
    for number, size in enumerate(sizes, 1):
        part = parts == number
        expected = labels[part] if size * voxel >= smallest else 0
        np.testing.assert_array_equal(seen[part], expected)
    largest = keep_components(labels, voxel, Kept(largest_only=True))
    assert (largest > 0).sum() == max(sizes)


def test_dice_is_the_mean_over_regions():
    reference, predicted = drawn((0, 3, 1), (4, 5, 2)), drawn((0, 3, 1), (4, 4, 2))
    assert mean_dice(reference, predicted, REGIONS) == pytest.approx((2 * 45 / 99 + 2 * 9 / 27) / 2)
    assert mean_dice(drawn(), drawn(), REGIONS) == 1
    assert mean_dice(drawn((0, 3, 1)), drawn(), REGIONS) == 0.5, "neither has a core"


def test_the_validation_decides():
    lesion = drawn((0, 9, 1), (10, 12, 2))
    with_specks = np.maximum(lesion, drawn((20, 20, 1), (30, 30, 1)))  # 9 mm³ each
    kept, scores = choose_kept([(lesion, with_specks, 1.0)] * 3, REGIONS)
    assert kept == Kept(smallest_mm3=10.0) and scores[1] == 1.0 > scores[0]
    # Two lesions: keeping the largest would be worse.
    two = drawn((0, 9, 1), (20, 25, 2))
    kept, scores = choose_kept([(two, two, 1.0)], REGIONS)
    assert kept == ALL and scores[0] == 1.0 > scores[-1]
    # A large false component, and a larger lesion.
    false = np.maximum(np.kron(lesion, np.ones((4, 4, 4), np.uint8)), 0)
    wrong = false.copy()
    wrong[100:140, 8:20, 8:20] = 1
    kept, _ = choose_kept([(false, wrong, 1.0)], REGIONS)
    assert kept == Kept(largest_only=True)
    # No difference: nothing is removed.
    assert choose_kept([(lesion, lesion, 1.0)], REGIONS)[0] == ALL


@pytest.mark.parametrize("specks", [True, False])
def test_choice_is_written_for_the_model(tmp_path, specks):
    """The scores of this model are its input."""

    def case(seed: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        labels = np.zeros((32, 24, 16), np.uint8)
        x, y, z = random.integers(2, 8, 3)
        labels[x : x + 8, y : y + 8, z : z + 6] = 1
        scores = np.where(labels, 0.9, 0.1)
        if specks:
            scores[28:30, 20, 12] = 0.8
        return scores[..., None].astype(np.float16), labels

    cases = {f"C{number}": case(number) for number in range(4)}
    splits = {"train": {"C9": case(9)}, "valid": cases}
    manifest = write_set(tmp_path, splits, ("a",))
    volumes = VolumeSettings(modalities=("a",), labels={"lesion": 1}, regions="labels")
    patches = PatchSettings(size=(16, 16, 16))
    folder = tmp_path / "model"
    described = {"train": {"limit_batches": None}}
    _, path = write_model(folder, copying((16, 16, 16), 1), volumes, patches, **described)
    path.rename(folder / "settings.json")
    complete(folder, manifest, {"windows": {}})
    written = json.loads((folder / "settings.json").read_text())
    chosen = written["postprocessing"]
    assert written["train"] == described["train"]
    kept = Kept(smallest_mm3=10.0) if specks else ALL
    assert {key: chosen[key] for key in kept.to_json()} == kept.to_json()
    assert Segmenter(folder / "model.keras", folder / "settings.json").kept == kept
    dice = [each["dice"] for each in chosen["tried"]]
    assert len(dice) == len(CANDIDATES)
    expected = 2 * 384 / (2 * 384 + 2) if specks else 1
    assert dice[0] == pytest.approx(expected) and dice[1] == 1
