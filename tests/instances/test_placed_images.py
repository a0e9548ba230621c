"""The pixels of images on the canvas, and whether masks lie where their image is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_mask_rcnn import box_of, ellipse
from whole_images import (
    COLOUR,
    mirrored_on_canvas,
    on_canvas,
    placed_image,
    placements,
    turned,
)

from gigatile.instances.annotations import stack_instances
from gigatile.settings.detection import DetectionSettings
from gigatile.tasks.instance_segmentation.placement import (
    Placement,
    change_colours,
    place,
    place_boxes,
    place_instances,
    place_mask,
)


@given(placements(), st.integers(0, 2**32 - 1))
def test_image_of_the_same_size_keeps_its_pixels(case, seed):
    height, width, placement = case
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    expected = turned(image, placement.view)
    tall, wide = expected.shape[:2]
    same = Placement(
        placement.view,
        *(tall, wide),
        min(placement.top, max(0, tall - placement.canvas[0])),
        min(placement.left, max(0, wide - placement.canvas[1])),
        *(placement.canvas, COLOUR),
    )
    np.testing.assert_array_equal(placed_image(image, same), mirrored_on_canvas(expected, same))


@pytest.mark.parametrize("view", range(8))
def test_smaller_image_has_the_means_of_its_blocks(view):
    image = np.random.default_rng(view).integers(0, 256, (24, 36, 3), np.uint8)
    whole = turned(image, view)
    tall, wide = whole.shape[0] // 2, whole.shape[1] // 3
    placement = Placement(view, tall, wide, 1, 2, (8, 64), COLOUR)
    means = whole.reshape(tall, 2, wide, 3, 3).mean(axis=(1, 3))
    expected = mirrored_on_canvas(means, placement)
    assert abs(placed_image(image, placement) - expected).max() <= 1


@pytest.mark.parametrize("view", range(8))
@pytest.mark.parametrize("scale", [1.5, 2, 3.3])
def test_larger_image_is_interpolated_between_the_centres_of_pixels(view, scale):
    """A linear image stays linear: half-pixel centres, as for the masks."""
    y, x = np.mgrid[:20, :30] + 0.5
    image = np.repeat((4 * y + 5 * x)[..., None], 3, axis=-1).astype(np.uint8)
    whole = turned(image, view).astype(float)
    tall, wide = round(whole.shape[0] * scale), round(whole.shape[1] * scale)
    placement = Placement(view, tall, wide, 3, 5, (32, 32), COLOUR)
    rows = (np.arange(tall) + 0.5) * whole.shape[0] / tall
    columns = (np.arange(wide) + 0.5) * whole.shape[1] / wide
    down, across = whole[1, 0, 0] - whole[0, 0, 0], whole[0, 1, 0] - whole[0, 0, 0]
    exact = whole[0, 0, 0] + (rows[:, None] - 0.5) * down + (columns[None] - 0.5) * across
    ours = placed_image(image, placement)[..., 0]
    # Pixels within half a pixel of the border of the image are not interpolated.
    inner = np.zeros((tall, wide), bool)
    margin = int(np.ceil(scale / 2))
    inner[margin:-margin, margin:-margin] = True
    core = on_canvas(inner, placement)
    difference = ours - on_canvas(exact, placement)
    assert core.sum() > 500 and abs(difference[core]).max() < 1.6


def centroid(weights: np.ndarray) -> np.ndarray:
    """Return the mean position of pixels, where the first one covers 0 to 1."""
    rows, columns = (np.arange(side) + 0.5 for side in weights.shape)
    return np.array([weights.sum(axis=1) @ rows, weights.sum(axis=0) @ columns]) / weights.sum()


def test_image_and_masks_stay_aligned():
    """The image equals the mask: so do their centroids, to half a pixel each, to less on average.

    Half a pixel is what rounding a mask to whole pixels costs.
    """
    height, width = 46, 61
    mask = ellipse(height, width, (12, 17, 35, 52))
    mask[30:, :20] = True  # not symmetric
    image = np.repeat(mask[..., None], 3, axis=-1).astype(np.uint8) * 255
    instances = stack_instances([(mask, (0, 0))], [1])
    random, differences = np.random.default_rng(0), []
    for seed in range(200):
        scale = random.choice([0.5, 1, 2, random.uniform(0.4, 3)])
        settings = DetectionSettings(canvas=(224, 224), scale=scale, scale_jitter=0.15)
        placement = place(height, width, seed, settings)
        (crop,) = place_instances(instances, height, width, placement).crops
        pixels = place_mask(instances.mask(0), instances.crops[0], crop, height, width, placement)
        whole = np.zeros((224, 224))
        whole[crop[0] : crop[2], crop[1] : crop[3]] = pixels
        visible = placed_image(image, placement)[..., 0] / 255.0
        visible[placement.visible[0] :] = 0
        visible[:, placement.visible[1] :] = 0
        # Where the image is clearly inside or outside, so is the mask.
        assert whole[visible > 0.99].all() and not whole[visible < 0.01].any()
        assert abs(whole.sum() / visible.sum() - 1) < 0.1
        source = turned(mask, placement.view)
        exact = centroid(source) * (placement.height, placement.width) / source.shape
        np.testing.assert_allclose(centroid(visible), exact, atol=0.1)
        differences.append(centroid(whole) - exact)
        box = place_boxes(instances.boxes, height, width, placement)[0]
        np.testing.assert_allclose(box, box_of(whole > 0), atol=0.5 + 1e-9)
    assert abs(np.array(differences)).max() < 0.5
    assert abs(np.mean(differences, axis=0)).max() < 0.04


def test_colours_change_monotonically_also_of_the_mirror_images():
    image = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    for seed in range(30):
        colour = np.random.default_rng(seed).random(6)
        placement = Placement(0, 1, 256, 0, 0, (2, 300), colour)
        out = placed_image(image, placement)
        change_colours(out, placement, 0.4)
        np.testing.assert_array_equal(out[1], out[0])
        np.testing.assert_array_equal(out[:, 256:], out[:, 212:256][:, ::-1])
        levels = out[0, :256].astype(int)
        assert (np.diff(levels, axis=0) >= 0).all()
        # 0.4 of the range for brightness, and as much around the middle for contrast.
        assert abs(levels[128] - 128).max() <= 0.4 * 128 + 1
        assert abs(levels - np.arange(256)[:, None]).max() <= 0.4 * 256 + 1
        assert (levels != np.arange(256)[:, None]).any()
    unchanged = placed_image(image, placement)
    change_colours(unchanged, placement, 0)
    np.testing.assert_array_equal(unchanged, placed_image(image, placement))
