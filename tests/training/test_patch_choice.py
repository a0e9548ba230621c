"""The position and augmentation of patches are functions of the seed."""

import numpy as np
from volume_patches import DRAWS, a_head, filled, recorded

from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.patch_sampling import choose_patch

# Frozen: other values would change the result of the same settings.
FROZEN = ((30, 14, 26), 2, (False, False, False))
FROZEN_INTENSITIES = [
    -0.07925643904653434,
    1.0068887138110283,
    0.9591048552299003,
    0.0889643409281502,
]
FROZEN_ROTATION = [
    [1.13331906280196, -0.0173946752644993, 0.0489568145923354],
    [0.0264953226660848, 1.11307859162161, -0.217865759777361],
    [-0.0446916356761055, 0.218780521708376, 1.11231703374285],
]


def test_all_labels_are_centred_equally_often(head):
    _, labels, record = head
    how = PatchSettings(size=(16, 16, 16), foreground=0.4)
    patches = [choose_patch(record.head, draw, how) for draw in DRAWS]
    counts = np.bincount([patch.centred for patch in patches], minlength=4)
    # Five standard deviations of the fraction.
    np.testing.assert_allclose(
        counts[1:] / len(DRAWS), 0.4 / 3, atol=5 * (0.13 * 0.87 / 4000) ** 0.5
    )
    free = 0
    for patch in patches:
        middle = tuple(first + 8 for first in patch.start)
        within = all(0 < a < b - 16 for a, b in zip(patch.start, labels.shape, strict=True))
        if patch.centred and within:  # otherwise it was moved into the volume
            assert labels[middle] == patch.centred
            free += 1
    assert free > 1000
    voxels = {patch.start for patch in patches if patch.centred}
    assert len(voxels) > 0.8 * counts[1:].sum(), "centred on many different voxels"


def test_other_patches_are_uniform_inside_the_volume(head):
    record = head[2]
    how = PatchSettings(size=(16, 40, 64), foreground=0)
    starts = np.array([choose_patch(record.head, draw, how).start for draw in DRAWS])
    for axis, room in enumerate((44, 10, 6)):
        counts = np.bincount(starts[:, axis], minlength=room + 1)
        assert len(counts) == room + 1
        expected = len(DRAWS) / (room + 1)
        np.testing.assert_allclose(counts, expected, atol=5 * expected**0.5)
    assert abs(np.corrcoef(starts.T) - np.eye(3)).max() < 0.08
    foreground_only = PatchSettings(size=(16, 40, 64), foreground=1)
    assert all(choose_patch(record.head, draw, foreground_only).centred for draw in DRAWS[:500])


def test_patches_without_labels_are_not_centred(tmp_path):
    image, labels = a_head((40, 40, 40), 1)
    for given_labels in (None, np.zeros_like(labels)):
        record = recorded(tmp_path / "v", image, given_labels)
        how = PatchSettings(size=(16, 16, 16), foreground=1)
        for draw in DRAWS[:10]:
            assert choose_patch(record.head, draw, how).centred == 0
            patch_image, patch_labels = filled(record, draw, how)
            assert patch_image.any() and not patch_labels.any()


def test_fractions_of_flipped_and_rotated_patches(head):
    how = PatchSettings(size=(16, 16, 16), rotated=0.3)
    patches = [choose_patch(head[2].head, draw, how) for draw in DRAWS]
    flipped = np.array([patch.flipped for patch in patches])
    np.testing.assert_allclose(flipped.mean(axis=0), 0.5, atol=5 * (0.25 / 4000) ** 0.5)
    assert abs(np.corrcoef(flipped.T) - np.eye(3)).max() < 0.08
    turned = np.array([patch.rotation is not None for patch in patches])
    np.testing.assert_allclose(turned.mean(), 0.3, atol=5 * (0.21 / 4000) ** 0.5)


def test_intensity_changes_are_within_the_settings(head):
    how = PatchSettings(size=(16, 16, 16), intensity=0.25)
    patches = [choose_patch(head[2].head, draw, how) for draw in DRAWS]
    for name, low, high in (
        ("brightness", -0.25, 0.25),
        ("contrast", 0.75, 1.25),
        ("gamma", 0.75, 1.25),
        ("noise", 0, 0.25),
    ):
        values = np.array([getattr(patch, name) for patch in patches])
        assert values.shape == (4000, 4)
        assert low <= values.min() < low + 0.01 and high - 0.01 < values.max() <= high
        np.testing.assert_allclose(values.mean(axis=0), (low + high) / 2, atol=5 * 0.15 / 4000**0.5)


def test_rotation_is_in_millimetres(tmp_path):
    image, labels = a_head((40, 40, 20), 1)
    record = recorded(tmp_path / "v", image, labels, {"spacing": [1.0, 1.0, 3.0]})
    how = PatchSettings(size=(16, 16, 16), rotated=1, rotation=30, scaling=0.2)
    scales, angles = [], []
    for draw in DRAWS[:500]:
        matrix = choose_patch(record.head, draw, how).rotation
        in_mm = np.diag([1, 1, 3]) @ matrix @ np.diag([1, 1, 1 / 3])
        scale = np.cbrt(abs(np.linalg.det(in_mm)))
        np.testing.assert_allclose(in_mm @ in_mm.T, scale**2 * np.eye(3), atol=1e-12)
        scales.append(1 / scale)
        angles.append(np.degrees(np.arcsin(abs(in_mm[0, 1] / scale))))
    assert 0.8 <= min(scales) < 0.82 and 1.18 < max(scales) <= 1.2
    assert 20 < max(angles) <= 90


def test_seed_gives_the_same_patch_on_every_machine(head):
    patch = choose_patch(head[2].head, 123456789, PatchSettings(size=(16, 16, 16), rotated=1))
    assert (patch.start, patch.centred, patch.flipped) == FROZEN
    intensities = [patch.brightness[0], patch.contrast[1], patch.gamma[2], patch.noise[3]]
    assert intensities == FROZEN_INTENSITIES
    np.testing.assert_allclose(patch.rotation, FROZEN_ROTATION, rtol=1e-12)


def test_augmentations_are_independent(head):
    """Disabling an augmentation does not change the others."""
    record = head[2]
    for draw in DRAWS[:50]:
        all_on = choose_patch(record.head, draw, PatchSettings(size=(16, 16, 16)))
        some = choose_patch(
            record.head, draw, PatchSettings(size=(16, 16, 16), rotated=0, intensity=0.5)
        )
        assert (all_on.start, all_on.flipped) == (some.start, some.flipped)
        np.testing.assert_allclose(all_on.brightness * 5, some.brightness, rtol=1e-12)
