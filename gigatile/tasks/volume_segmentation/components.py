"""Remove components of a segmentation: all but the largest, or those below a volume.

As in nnU-Net (Isensee et al. 2021, https://doi.org/10.1038/s41592-020-01008-z), the validation
cases decide. A component consists of labelled voxels that touch, whatever their labels.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import Field
from scipy import ndimage

from gigatile.json_models import JsonModel

_CONNECTED = np.ones((3, 3, 3), bool)


class Kept(JsonModel):
    """Which components are kept.

    Attributes:
        largest_only: only the largest; of equals, the first in memory.
        smallest_mm3: the smallest volume.
    """

    largest_only: bool = False
    smallest_mm3: float = Field(0.0, ge=0)


ALL = Kept()
# What the validation chooses from; of equals, the first.
CANDIDATES = (
    ALL,
    *(Kept(smallest_mm3=volume) for volume in (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)),
    Kept(largest_only=True),
)


def keep_components(labels: np.ndarray, voxel_mm3: float, kept: Kept) -> np.ndarray:
    """Return a segmentation without the components that are not kept.

    Args:
        labels: (x, y, z) uint8, 0 background; it is not changed.
        voxel_mm3: volume of a voxel.
        kept: which components are kept.
    """
    if kept == ALL:
        return labels
    components, count = ndimage.label(labels, _CONNECTED)
    if not count:
        return labels
    sizes = np.bincount(components.reshape(-1), minlength=count + 1)
    sizes[0] = 0
    if kept.largest_only:
        stays = np.arange(count + 1) == sizes.argmax()
    else:
        # Rounding of the spacing, in single precision, must not decide.
        stays = sizes * voxel_mm3 >= kept.smallest_mm3 * (1 - 1e-5)
    return np.where(stays[components], labels, 0).astype(labels.dtype)


def mean_dice(
    reference: np.ndarray, predicted: np.ndarray, regions: Mapping[str, Sequence[int]]
) -> float:
    """Return the mean Dice of the regions; 1 where a region is in neither.

    Args:
        reference, predicted: (x, y, z) uint8.
        regions: the values of the labels of each region.
    """
    values = []
    for labels in regions.values():
        inside = np.zeros(256, bool)
        inside[list(labels)] = True
        first, second = inside[reference], inside[predicted]
        total = int(first.sum()) + int(second.sum())
        values.append(2 * int((first & second).sum()) / total if total else 1.0)
    return float(np.mean(values))


def choose_kept(
    cases: Iterable[tuple[np.ndarray, np.ndarray, float]], regions: Mapping[str, Sequence[int]]
) -> tuple[Kept, list[float]]:
    """Return what to keep: the candidate with the highest mean Dice, and the Dice of each.

    Args:
        cases: reference and predicted segmentation, and the volume of a voxel in mm³.
        regions: the values of the labels of each region.
    """
    scores = [
        [
            mean_dice(reference, keep_components(predicted, voxel_mm3, kept), regions)
            for kept in CANDIDATES
        ]
        for reference, predicted, voxel_mm3 in cases
    ]
    means = np.mean(scores, axis=0).tolist()
    return CANDIDATES[int(np.argmax(means))], means
