"""Lesion-wise scores of a region: each lesion of the reference is scored by itself.

As in the BraTS challenge since 2023 (https://github.com/rachitsaluja/BraTS-2023-Metrics): a small
lesion counts as much as a large one, a missed lesion counts as 0, and so does a predicted lesion
where the reference has none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

# Voxels that touch at a face, an edge or a corner are connected.
_CONNECTED = np.ones((3, 3, 3), bool)
# A region grows to the voxels that touch it at a face or an edge.
_GROWN = ndimage.generate_binary_structure(3, 2)


@dataclass(frozen=True)
class LesionScores:
    """The lesion-wise scores of a region of a case.

    Attributes:
        dice: mean over the lesions of the reference and the false positives, which count 0; 1:
            neither has lesions.
        hd95_mm: the same of the 95 % Hausdorff distance, where missed lesions and false positives
            have the largest possible distance; 0: neither has lesions.
        lesions: number of lesions of the reference that are large enough to count.
        missed: how many of them no predicted lesion reaches.
        false_positives: number of predicted lesions that reach no lesion of the reference.
    """

    dice: float
    hd95_mm: float
    lesions: int
    missed: int
    false_positives: int


def score_lesions(
    reference: np.ndarray,
    predicted: np.ndarray,
    spacing: np.ndarray,
    dilation: int,
    smallest_mm3: float,
    farthest_mm: float,
    hausdorff: Callable[[np.ndarray, np.ndarray, np.ndarray], float],
) -> LesionScores:
    """Score the lesions of a region of a case.

    Parts of the reference that touch when they grow by `dilation` voxels are one lesion. The parts
    of the prediction that reach the grown lesion are scored together against the lesion itself. A
    lesion of at most `smallest_mm3` is not scored, and parts that reach it are not false positives.

    Args:
        reference: (x, y, z) bool, the region in the reference.
        predicted: (x, y, z) bool, the region in the prediction.
        spacing: (3,) mm between voxels along each axis.
        dilation: in voxels, at least 0.
        smallest_mm3: the largest volume that is ignored.
        farthest_mm: the distance of a missed lesion or a false positive.
        hausdorff: returns the distance of two regions; see `surfaces.HAUSDORFF95`.
    """
    both = reference | predicted
    if not both.any():
        return LesionScores(1.0, 0.0, 0, 0, 0)
    # Nothing outside the box changes a score: it has all that a lesion may grow to.
    (box,) = ndimage.find_objects(both.view(np.uint8))
    box = _grown(box, dilation + 1, reference.shape)
    reference, predicted = reference[box], predicted[box]
    # Without iterations, SciPy dilates until nothing changes.
    grown = reference
    if dilation:
        grown = ndimage.binary_dilation(reference, _GROWN, iterations=dilation)
    lesions, _ = ndimage.label(grown, _CONNECTED)
    lesions[~reference] = 0
    parts, number_of_parts = ndimage.label(predicted, _CONNECTED)
    part_boxes = ndimage.find_objects(parts)
    reaching = np.zeros(number_of_parts + 1, bool)
    dice, distances, missed = [], [], 0
    for number, lesion_box in enumerate(ndimage.find_objects(lesions), 1):
        near = _grown(lesion_box, dilation, reference.shape)
        lesion = lesions[near] == number
        reach = ndimage.binary_dilation(lesion, _GROWN, iterations=dilation) if dilation else lesion
        reached = np.unique(parts[near][reach])
        reached = reached[reached > 0]
        reaching[reached] = True
        if float(lesion.sum() * spacing.prod()) <= smallest_mm3:
            continue
        if not len(reached):
            missed += 1
            dice.append(0.0)
            distances.append(farthest_mm)
            continue
        together = _union([lesion_box, *(part_boxes[part - 1] for part in reached)])
        lesion, part = lesions[together] == number, np.isin(parts[together], reached)
        dice.append(2 * int((lesion & part).sum()) / int(lesion.sum() + part.sum()))
        distances.append(hausdorff(lesion, part, spacing))
    false_positives = number_of_parts - int(reaching.sum())
    scored = len(dice) + false_positives
    return LesionScores(
        dice=sum(dice) / scored if scored else 1.0,
        hd95_mm=(sum(distances) + false_positives * farthest_mm) / scored if scored else 0.0,
        lesions=len(dice),
        missed=missed,
        false_positives=false_positives,
    )


def _grown(box: tuple[slice, ...], voxels: int, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(
        slice(max(0, part.start - voxels), min(side, part.stop + voxels))
        for part, side in zip(box, shape, strict=True)
    )


def _union(boxes: list[tuple[slice, ...]]) -> tuple[slice, ...]:
    return tuple(
        slice(min(part.start for part in parts), max(part.stop for part in parts))
        for parts in zip(*boxes, strict=True)
    )
