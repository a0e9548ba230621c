"""The picture of training samples."""

import numpy as np
from sample_pairs import cells
from volume_set import patient, write_set

from gigatile.settings.augmentation import AugmentationSettings
from gigatile.settings.patches import PatchSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.tasks.volume_segmentation.training import VolumeSegmentation
from gigatile.training.sample_sheet import draw_samples


def drawn(manifest, augmentation=None, count=5, epoch=0) -> np.ndarray:
    task = TileClassification(TileSettings(), augmentation)
    return draw_samples(task, manifest, TrainSettings(views=("identity",)), count, epoch)


def test_samples_are_shown_before_and_after(manifest):
    picture = drawn(manifest)
    pairs = cells(picture, 32)
    assert len(pairs) == 8  # two rows of four, of which the last three are empty
    for before, after in pairs[:5]:
        np.testing.assert_array_equal(before, after)
        assert before.std() > 5
    assert all((image == 255).all() for pair in pairs[5:] for image in pair)
    changed = cells(drawn(manifest, AugmentationSettings(stain=0.2, cutout=0.5)), 32)
    for (before, after), (unchanged, _) in zip(changed[:5], pairs, strict=False):
        np.testing.assert_array_equal(before, unchanged)
        assert (before != after).any()
    later = cells(drawn(manifest, AugmentationSettings(stain=0.2), epoch=1), 32)
    assert any((a[1] != b[1]).any() for a, b in zip(later[:5], changed, strict=False))


def test_more_samples_than_there_are_are_not_repeated(manifest):
    pairs = cells(drawn(manifest, count=1000), 32)
    shown = [before for before, _ in pairs if (before != 255).any()]
    assert len(shown) == 75


def test_slices_of_volumes_are_shown(tmp_path):
    cases = {f"C{number}": patient((26, 22, 24), number) for number in range(3)}
    manifest = write_set(tmp_path, {"train": cases}, ("one", "two"))
    volumes = VolumeSettings(modalities=("one", "two"), labels="decathlon")
    pictures = {}
    for intensity in (0, 0.5):
        patches = PatchSettings(
            size=(16, 16, 16), per_case=1, flips=False, rotated=0, intensity=intensity
        )
        task = VolumeSegmentation(volumes, patches)
        pictures[intensity] = cells(draw_samples(task, manifest, TrainSettings(), 3, 0), 16)
    for (before, same), (unchanged, after) in zip(pictures[0], pictures[0.5], strict=True):
        np.testing.assert_array_equal(before, same)
        np.testing.assert_array_equal(before, unchanged)
        assert (after != before).any() and before.std() > 10
