"""Where patches lie and what is done to them, and that all of it follows from the draw."""

import numpy as np
from volume_patches import DRAWS, a_head, filled, recorded

from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.patch_sampling import choose_patch

# What a draw gave when this was written.
DRAWN = ((30, 14, 26), 2, (False, False, False))
DRAWN_FIGURES = [-0.07925643904653434, 1.0068887138110283, 0.9591048552299003, 0.0889643409281502]
DRAWN_TURN = [
    [1.13331906280196, -0.0173946752644993, 0.0489568145923354],
    [0.0264953226660848, 1.11307859162161, -0.217865759777361],
    [-0.0446916356761055, 0.218780521708376, 1.11231703374285],
]


def test_a_share_of_patches_is_centred_on_each_label_alike(head):
    _, labels, record = head
    how = PatchSettings(size=(16, 16, 16), foreground=0.4)
    found = [choose_patch(record.head, draw, how) for draw in DRAWS]
    counts = np.bincount([patch.centred for patch in found], minlength=4)
    # Five standard deviations of a share.
    np.testing.assert_allclose(
        counts[1:] / len(DRAWS), 0.4 / 3, atol=5 * (0.13 * 0.87 / 4000) ** 0.5
    )
    free = 0
    for patch in found:
        middle = tuple(first + 8 for first in patch.start)
        within = all(0 < a < b - 16 for a, b in zip(patch.start, labels.shape, strict=True))
        if patch.centred and within:  # else it was moved to lie inside
            assert labels[middle] == patch.centred
            free += 1
    assert free > 1000
    voxels = {patch.start for patch in found if patch.centred}
    assert len(voxels) > 0.8 * counts[1:].sum(), "any of the voxels"


def test_the_other_patches_lie_anywhere_inside(head):
    record = head[2]
    how = PatchSettings(size=(16, 40, 64), foreground=0)
    starts = np.array([choose_patch(record.head, draw, how).start for draw in DRAWS])
    for axis, room in enumerate((44, 10, 6)):
        counts = np.bincount(starts[:, axis], minlength=room + 1)
        assert len(counts) == room + 1
        expected = len(DRAWS) / (room + 1)
        np.testing.assert_allclose(counts, expected, atol=5 * expected**0.5)
    assert abs(np.corrcoef(starts.T) - np.eye(3)).max() < 0.08
    with_all = PatchSettings(size=(16, 40, 64), foreground=1)
    assert all(choose_patch(record.head, draw, with_all).centred for draw in DRAWS[:500])


def test_without_labels_patches_lie_anywhere(tmp_path):
    image, labels = a_head((40, 40, 40), 1)
    for given_labels in (None, np.zeros_like(labels)):
        record = recorded(tmp_path / "v", image, given_labels)
        how = PatchSettings(size=(16, 16, 16), foreground=1)
        for draw in DRAWS[:10]:
            assert choose_patch(record.head, draw, how).centred == 0
            found, of_labels = filled(record, draw, how)
            assert found.any() and not of_labels.any()


def test_half_of_the_patches_are_flipped_along_each_axis_and_a_share_is_turned(head):
    how = PatchSettings(size=(16, 16, 16), rotated=0.3)
    found = [choose_patch(head[2].head, draw, how) for draw in DRAWS]
    flipped = np.array([patch.flipped for patch in found])
    np.testing.assert_allclose(flipped.mean(axis=0), 0.5, atol=5 * (0.25 / 4000) ** 0.5)
    assert abs(np.corrcoef(flipped.T) - np.eye(3)).max() < 0.08
    turned = np.array([patch.turned is not None for patch in found])
    np.testing.assert_allclose(turned.mean(), 0.3, atol=5 * (0.21 / 4000) ** 0.5)


def test_changes_are_within_what_the_settings_allow(head):
    how = PatchSettings(size=(16, 16, 16), intensity=0.25)
    found = [choose_patch(head[2].head, draw, how) for draw in DRAWS]
    for name, low, high in (
        ("brightness", -0.25, 0.25),
        ("contrast", 0.75, 1.25),
        ("gamma", 0.75, 1.25),
        ("noise", 0, 0.25),
    ):
        values = np.array([getattr(patch, name) for patch in found])
        assert values.shape == (4000, 4)
        assert low <= values.min() < low + 0.01 and high - 0.01 < values.max() <= high
        np.testing.assert_allclose(values.mean(axis=0), (low + high) / 2, atol=5 * 0.15 / 4000**0.5)


def test_turning_is_of_millimetres(tmp_path):
    image, labels = a_head((40, 40, 20), 1)
    record = recorded(tmp_path / "v", image, labels, {"spacing": [1.0, 1.0, 3.0]})
    how = PatchSettings(size=(16, 16, 16), rotated=1, rotation=30, scaling=0.2)
    scales, angles = [], []
    for draw in DRAWS[:500]:
        matrix = choose_patch(record.head, draw, how).turned
        in_mm = np.diag([1, 1, 3]) @ matrix @ np.diag([1, 1, 1 / 3])
        scale = np.cbrt(abs(np.linalg.det(in_mm)))
        np.testing.assert_allclose(in_mm @ in_mm.T, scale**2 * np.eye(3), atol=1e-12)
        scales.append(1 / scale)
        angles.append(np.degrees(np.arcsin(abs(in_mm[0, 1] / scale))))
    assert 0.8 <= min(scales) < 0.82 and 1.18 < max(scales) <= 1.2
    assert 20 < max(angles) <= 90


def test_a_draw_is_the_same_on_every_machine(head):
    patch = choose_patch(head[2].head, 123456789, PatchSettings(size=(16, 16, 16), rotated=1))
    assert (patch.start, patch.centred, patch.flipped) == DRAWN
    figures = [patch.brightness[0], patch.contrast[1], patch.gamma[2], patch.noise[3]]
    assert figures == DRAWN_FIGURES
    np.testing.assert_allclose(patch.turned, DRAWN_TURN, rtol=1e-12)


def test_what_one_thing_draws_does_not_move_another(head):
    """Settings that are turned off leave the rest as it was."""
    record = head[2]
    for draw in DRAWS[:50]:
        all_on = choose_patch(record.head, draw, PatchSettings(size=(16, 16, 16)))
        some = choose_patch(
            record.head, draw, PatchSettings(size=(16, 16, 16), rotated=0, intensity=0.5)
        )
        assert (all_on.start, all_on.flipped) == (some.start, some.flipped)
        np.testing.assert_allclose(all_on.brightness * 5, some.brightness, rtol=1e-12)
