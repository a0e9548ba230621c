"""Intensity augmentation of patches: as sampled, and only inside the head."""

import numpy as np
import pytest
from volume_patches import DRAWS, PLAIN, a_head, filled, recorded

from gigatile.records.shuffle import normal_numbers
from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation import intensities
from gigatile.tasks.volume_segmentation.patch_sampling import choose_patch

# Frozen: another noise would change the result of the same settings.
FIRST_NOISE = [0.4353618621826172, 0.4975563883781433, 1.880189061164856, 0.7176294326782227]


def test_only_voxels_inside_the_head_change(head):
    image, _, record = head
    how = PatchSettings(size=(32, 32, 32), **PLAIN | {"intensity": 1.0})
    for draw in DRAWS[:20]:
        x, y, z = choose_patch(record.head, draw, how).start
        before = image[x : x + 32, y : y + 32, z : z + 32]
        after, _ = filled(record, draw, how)
        assert np.isfinite(after).all()
        outside = (before == 0).all(axis=-1)
        assert not after[outside].any()
        assert (after != before)[~outside].mean() > 0.9


def test_missing_channel_stays_0(tmp_path):
    image, labels = a_head((32, 32, 32), 3)
    image[..., 1] = 0
    record = recorded(tmp_path / "v", image, labels)
    how = PatchSettings(size=(16, 16, 16), intensity=1.0)
    for draw in DRAWS[:40]:
        after, _ = filled(record, draw, how)
        assert not after[..., 1].any()
        assert after[..., 0].any() and after[..., 2].any()


@pytest.mark.parametrize("channels", range(1, 8))
def test_voxel_is_outside_where_all_channels_are_0(channels):
    bits = np.random.default_rng(3).integers(0, 2, (30, 20, channels), np.uint16) << 9
    np.testing.assert_array_equal(intensities._not_zero(bits), bits.any(axis=-1))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_each_channel_changes_as_sampled(tmp_path, channels):
    """The residual after the sampled change is noise with the sampled deviation."""
    random = np.random.default_rng(6)
    image = random.uniform(-2, 3, (32, 32, 32, channels)).astype(np.float16)
    record = recorded(tmp_path / "v", image, None)
    how = PatchSettings(size=(32, 32, 32), **PLAIN | {"intensity": 0.4})
    noises = []
    for draw in DRAWS[:20]:
        patch = choose_patch(record.head, draw, how)
        after, _ = filled(record, draw, how)
        residuals = []
        for channel in range(channels):
            values = image[..., channel].astype(float)
            low, high = values.min(), values.max()
            scaled = ((values - low) / (high - low)) ** patch.gamma[channel]
            expected = (low + (high - low) * scaled) * patch.contrast[channel]
            noise = after[..., channel] - expected - patch.brightness[channel]
            assert abs(noise.mean()) < 0.02
            np.testing.assert_allclose(noise.std(), patch.noise[channel], atol=0.01)
            residuals.append(noise.ravel())
            noises.append(patch.noise[channel])
        if channels > 1:
            assert abs(np.corrcoef(residuals) - np.eye(channels)).max() < 0.1
    assert 0 < min(noises) < 0.1 and 0.3 < max(noises) < 0.4


def test_noise_is_nearly_normal_and_reproducible():
    noise = normal_numbers(2**16).reshape(-1, 4)
    assert noise.shape == (2**14, 4) and noise.dtype == np.float32
    np.testing.assert_allclose(noise.mean(), 0, atol=0.02)
    np.testing.assert_allclose(noise.std(), 1, atol=0.01)
    assert 3 < np.abs(noise).max() < 5
    for lag in (1, 2, 17):
        flat = noise.ravel()
        assert abs(np.corrcoef(flat[lag:], flat[:-lag])[0, 1]) < 0.02
    assert noise[0].tolist() == FIRST_NOISE
