"""Patches as read from records: cropped, padded and flipped."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from volume_patches import DRAWS, PLAIN, a_head, filled, recorded

from gigatile.records import RecordError
from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.patch_sampling import choose_patch
from gigatile.tasks.volume_segmentation.patches import fill_patch


def test_patch_is_a_crop_of_the_volume(head):
    image, labels, record = head
    how = PatchSettings(size=(32, 24, 40), **PLAIN)
    for draw in DRAWS[:30]:
        x, y, z = choose_patch(record.head, draw, how).start
        patch_image, patch_labels = filled(record, draw, how)
        np.testing.assert_array_equal(patch_image, image[x : x + 32, y : y + 24, z : z + 40])
        np.testing.assert_array_equal(patch_labels, labels[x : x + 32, y : y + 24, z : z + 40])


def test_small_volume_is_centred_and_padded_with_0(tmp_path):
    image, labels = a_head((20, 40, 9), 2)
    record = recorded(tmp_path / "v", image + np.float16(1), labels)
    for foreground in (0, 1):
        how = PatchSettings(size=(32, 32, 16), foreground=foreground, **PLAIN)
        for draw in DRAWS[:20]:
            x, y, z = choose_patch(record.head, draw, how).start
            assert (x, z) == (-6, -4) and 0 <= y <= 8
            patch_image, patch_labels = filled(record, draw, how)
            np.testing.assert_array_equal(
                patch_image[6:26, :, 4:13], image[:, y : y + 32] + np.float16(1)
            )
            np.testing.assert_array_equal(patch_labels[6:26, :, 4:13], labels[:, y : y + 32])
            patch_image[6:26, :, 4:13], patch_labels[6:26, :, 4:13] = 0, 0
            assert not patch_image.any() and not patch_labels.any()


def test_image_and_labels_are_flipped_alike(head):
    image, labels, record = head
    how = PatchSettings(size=(32, 24, 40), **PLAIN | {"flips": True})
    seen = set()
    for draw in DRAWS[:60]:
        patch = choose_patch(record.head, draw, how)
        box = tuple(slice(a, a + b) for a, b in zip(patch.start, how.size, strict=True))
        axes = np.flatnonzero(patch.flipped)
        patch_image, patch_labels = filled(record, draw, how)
        np.testing.assert_array_equal(patch_image, np.flip(image[box], axes))
        np.testing.assert_array_equal(patch_labels, np.flip(labels[box], axes))
        seen.add(patch.flipped)
    assert seen == set(itertools.product((False, True), repeat=3))


def test_patch_depends_only_on_its_seed(head):
    record = head[2]
    how = PatchSettings(size=(32, 24, 40), rotated=0.5)
    expected = [filled(record, draw, how) for draw in DRAWS[:24]]
    threads = cv2.getNumThreads()
    try:
        for count in (1, 4):
            cv2.setNumThreads(count)
            with ThreadPoolExecutor(count) as pool:
                patches = list(pool.map(lambda draw: filled(record, draw, how), DRAWS[:24]))
            for patch, reference in zip(patches, expected, strict=True):
                np.testing.assert_array_equal(patch[0], reference[0])
                np.testing.assert_array_equal(patch[1], reference[1])
    finally:
        cv2.setNumThreads(threads)
    whole = [image.tobytes() for image, _ in expected]
    assert len(set(whole)) == 24


def test_damaged_block_is_refused(tmp_path):
    image, labels = a_head((32, 32, 32), 1)
    record = recorded(tmp_path / "v", image, labels)
    content = bytearray((tmp_path / "v").read_bytes())
    content[-5] ^= 1  # the last label of the last block
    (tmp_path / "v").write_bytes(content)
    for rotated in (0, 1):
        with pytest.raises(RecordError, match="the checksum of a block"):
            filled(record, 1, PatchSettings(size=(32, 32, 32), rotated=rotated, foreground=0))


def test_arrays_of_another_shape_are_refused(head):
    how = PatchSettings(size=(32, 32, 32))
    with pytest.raises(ValueError, match="must be"):
        fill_patch(
            head[2], 1, how, np.zeros((32, 32, 16, 4), np.float16), np.zeros(how.size, np.uint8)
        )
    with pytest.raises(ValueError, match="must be"):
        fill_patch(
            head[2], 1, how, np.zeros((32, 32, 32, 4), np.float16), np.zeros((32, 32, 16), np.uint8)
        )
