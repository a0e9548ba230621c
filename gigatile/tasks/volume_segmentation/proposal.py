"""Proposes spacing, patches and batches from the sizes of the cases and the memory of a device.

The rules are those of nnU-Net (Isensee et al. 2021, https://doi.org/10.1038/s41592-020-01008-z,
supplementary note 2), except that the memory is measured, and that all axes are halved alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gigatile.errors import UserError
from gigatile.models.unet import MIN_SIDE, WIDTHS
from gigatile.volumes.state import CaseState

# Sides of a patch that `patches.size` accepts, in voxels.
SMALLEST, LARGEST, STEP = 16, 512, 8
# An axis has a low resolution if its voxels are this many times as long as those of the others, and
# the volume has this many times fewer of them along it.
ANISOTROPY = 3
# Voxels of the patch from which the search starts, if the cases are as large.
FIRST_VOXELS = 256**3
# A batch has at most this share of all voxels, but at least so many patches.
LARGEST_SHARE, LEAST_BATCH = 0.05, 2

Sides = tuple[float, float, float]
Patch = tuple[int, int, int]


@dataclass(frozen=True)
class CaseSize:
    """The size of a case.

    Attributes:
        spacing: mm between the voxels of its file, axes in RAS+.
        extent: mm of its content, which is cropped to the head unless `volumes.content` is `all`.
    """

    spacing: Sides
    extent: Sides

    @classmethod
    def from_state(cls, state: CaseState) -> "CaseSize":
        """Take the size of a prepared case from its state."""
        grid = state.grid
        if grid is None:
            raise ValueError(f"{state.case}: is not prepared")
        x, y, z = (n * mm for n, mm in zip(grid.shape, grid.spacing, strict=True))
        return cls(grid.canonical_spacing, (x, y, z))


@dataclass(frozen=True)
class StepMemory:
    """The memory of a training step, in bytes.

    Attributes:
        fixed: of the process, the weights and the state of the optimizer.
        per_voxel: of the patches.
    """

    fixed: float
    per_voxel: float

    def voxels(self, available: float) -> float:
        """Return how many voxels of patches a rank can process at a time."""
        return (available - self.fixed) / self.per_voxel

    def of(self, voxels: int) -> float:
        """Return the memory for so many voxels."""
        return self.fixed + self.per_voxel * voxels


@dataclass(frozen=True)
class Proposal:
    """Settings that suit the cases and the memory.

    Attributes:
        spacing: `volumes.spacing`, in mm.
        shape: voxels of the median case at that spacing.
        patch: `patches.size`.
        batch_size: `train.batch_size`, over all ranks.
    """

    spacing: Sides
    shape: Sides
    patch: Patch
    batch_size: int


def propose(
    cases: Sequence[CaseSize], memory: StepMemory, available: float, ranks: int, model: str
) -> Proposal:
    """Return settings for a cohort.

    Args:
        cases: of the training split.
        memory: of a training step.
        available: bytes of the device of a rank.
        ranks: that train together.
        model: the architecture.

    Raises:
        UserError: the smallest patch does not fit into the memory.
    """
    spacing = target_spacing(cases)
    shapes = np.array([case.extent for case in cases]) / spacing
    x, y, z = np.median(shapes, axis=0).tolist()
    share = -(-LEAST_BATCH // ranks)
    limit = memory.voxels(available) / share
    patch = patch_size(spacing, (x, y, z), limit, model)
    voxels = int(np.prod(patch))
    if voxels > limit:
        raise UserError(
            f"a patch of {' x '.join(map(str, patch))} voxels needs "
            f"{memory.of(voxels * share) / 1e9:.2g} GB with {model}; found "
            f"{available / 1e9:.2g} GB: use a smaller model"
        )
    most = round(LARGEST_SHARE * float(np.prod(shapes, axis=1).sum()) / voxels)
    of_rank = int(memory.voxels(available) // voxels)
    batch = max(share, min(of_rank, most // ranks)) * ranks
    return Proposal(spacing, (x, y, z), patch, batch)


def target_spacing(cases: Sequence[CaseSize]) -> Sides:
    """Return the median spacing; of an axis with a low resolution, the 10th percentile.

    Interpolation along such an axis would otherwise blur the cases with a higher resolution.
    """
    spacings = np.array([case.spacing for case in cases])
    sizes = np.array([case.extent for case in cases]) / spacings
    target, size = np.median(spacings, axis=0), np.median(sizes, axis=0)
    low = int(target.argmax())
    others, other_sizes = np.delete(target, low), np.delete(size, low)
    if target[low] > ANISOTROPY * others.max() and size[low] * ANISOTROPY < other_sizes.min():
        target[low] = max(np.percentile(spacings[:, low], 10), others.max())
    x, y, z = (float(f"{value:.4g}") for value in target)
    return x, y, z


def patch_size(spacing: Sides, shape: Sides, limit: float, model: str) -> Patch:
    """Return the largest patch of at most `limit` voxels, or the smallest one there is.

    It starts as a cube in mm, and is at most as large as the median case. Then its longest side,
    relative to the case, is shortened until it fits.

    Args:
        spacing: of the prepared cases, in mm.
        shape: of the median case, in voxels.
        limit: number of voxels.
        model: the architecture, which halves the sides.
    """
    density = 1 / np.array(spacing)
    cube = density * (FIRST_VOXELS / density.prod()) ** (1 / 3)
    sides = [_fitting(min(side, size), model) for side, size in zip(cube, shape, strict=True)]
    while np.prod(sides) > limit:
        shorter = [_fitting(side - STEP, model, down=True) for side in sides]
        relative = [
            side / size if lower < side else 0.0
            for side, size, lower in zip(sides, shape, shorter, strict=True)
        ]
        if not any(relative):
            break
        longest = int(np.argmax(relative))
        sides[longest] = shorter[longest]
    x, y, z = sides
    return x, y, z


def _fitting(side: float, model: str, down: bool = False) -> int:
    """Return a side that the model halves as often as any side of about that length.

    Args:
        side: wanted, in voxels.
        model: the architecture.
        down: whether it must not be longer.
    """
    halvings = len(WIDTHS[model]) - 1
    fitting = [
        n
        for n in range(SMALLEST, LARGEST + 1, STEP)
        if n % 2 ** min(halvings, int(np.log2(n / MIN_SIDE))) == 0
    ]
    if down:
        return max([n for n in fitting if n <= side], default=SMALLEST)
    return min([n for n in fitting if n >= side], default=fitting[-1])
