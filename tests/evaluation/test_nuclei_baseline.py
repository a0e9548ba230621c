"""The baseline of benchmarks/nuclei_baseline.py, on drawn and on real images."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from clones import ROOT
from skimage.draw import disk

from gigatile.evaluation.coco import average_precision

spec = spec_from_file_location("nuclei_baseline", ROOT / "benchmarks/nuclei_baseline.py")
assert spec and spec.loader
baseline = module_from_spec(spec)
sys.modules[spec.name] = baseline
spec.loader.exec_module(baseline)


def _picture(nucleus: int, background: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return an image of two nuclei that touch and one at the border, and their masks."""
    pixels = np.full((80, 100, 3), background, np.uint8)
    masks = []
    for centre, radius in (((30, 30), 11), ((30, 50), 11), ((70, -4), 8)):
        mask = np.zeros(pixels.shape[:2], bool)
        mask[disk(centre, radius, shape=mask.shape)] = True
        pixels[mask] = nucleus
        masks.append(mask)
    return pixels, masks


@pytest.mark.parametrize(("nucleus", "background"), [(40, 220), (220, 5)])
def test_nuclei_that_touch_are_separated(nucleus, background):
    pixels, masks = _picture(nucleus, background)
    for exclude_border, count in ((True, 2), (False, 3)):
        detections = baseline.segment(pixels, exclude_border)
        assert len(detections) == count
        for mask in masks[:count]:
            best = 0.0
            for detection in detections:
                y1, x1, y2, x2 = detection.crop
                whole = np.zeros_like(mask)
                whole[y1:y2, x1:x2] = detection.mask
                best = max(best, (whole & mask).sum() / (whole | mask).sum())
            assert best > 0.85
    # The score is the depth of the nucleus.
    scores = sorted(detection.score for detection in detections)
    assert scores[0] < 9 < scores[1] and scores[-1] < 13


def test_image_of_one_colour_has_no_nuclei():
    assert baseline.segment(np.full((30, 40, 3), 200, np.uint8), False) == []


@pytest.mark.long
@pytest.mark.slow
def test_figures_of_real_nuclei_are_the_known_ones(shared_data):
    nuclei = shared_data / "nuclei"
    images = baseline.annotated_images(nuclei / "annotations.json", nuclei / "images", "kind")
    results = [
        result
        for number, pixels in images.pixels
        for result in baseline.coco_results(
            number, *pixels.shape[:2], baseline.segment(pixels, True)
        )
    ]
    figures = {}
    for kind in ("tissue", "fluorescence"):
        chosen = {number for number, group in images.groups.items() if group == kind}
        truth = images.truth | {
            "images": [entry for entry in images.truth["images"] if entry["id"] in chosen],
            "annotations": [e for e in images.truth["annotations"] if e["image_id"] in chosen],
        }
        some = [result for result in results if result["image_id"] in chosen]
        values = average_precision(truth, some, "segm", baseline.MAX_DETECTIONS)
        figures[kind] = len(chosen), round(values["ap50"], 2), round(values["ap"], 2)
    assert figures == {"tissue": (48, 0.41, 0.18), "fluorescence": (178, 0.67, 0.34)}
