"""The 95 % Hausdorff distance between the surfaces of two regions, in millimetres.

Tools differ in what the surface is and over what the percentile is taken, and so do their figures
for one pair (Podobnik and Vrtovec 2024, https://doi.org/10.1007/978-3-031-72114-4_30). This is the
definition of the package surface-distance 0.1, by which the BraTS challenge has scored since 2023
(https://github.com/rachitsaluja/BraTS-2023-Metrics), and the figures are equal to that package's:

- The surface runs where eight voxels meet of which some are inside and some outside. Outside of
  the volume is outside of the region. Each such corner stands for the piece of surface that
  marching cubes lay there, halfway between voxels (Lorensen and Cline 1987,
  https://doi.org/10.1145/37402.37422), and counts by that piece's area in mm².
- From one surface to the other it is the smallest distance that 95 % of the first one's area keep
  to, each corner to the nearest corner of the other.
- Of the two directions the larger counts (Menze et al. 2015,
  https://doi.org/10.1109/TMI.2014.2377694). MedPy takes one percentile of both together instead.

Area counts, and not the number of voxels: with slices of 5 mm and pixels of 1 mm, the walls of a
region have more voxels to the area than its floor, and would count for more.

To compare with MONAI, which counts voxels, there is `hausdorff95_of_voxels`.
"""

from functools import cache
from itertools import permutations, product

import numpy as np
from scipy import ndimage
from scipy.spatial import KDTree

SHARE = 0.95
# The share at which rounding cannot decide: of twenty equal pieces, nineteen are 95 %.
_ENOUGH = SHARE - 1e-9

# What marching cubes lay into a cube of eight voxels: which of its corners are inside, and of each
# triangle the normal, whose length is its area, in eighths of a cube's face. All other cubes are
# these turned or mirrored, or have inside and outside exchanged.
_CUBES: tuple[tuple[str, str], ...] = (
    ("000", "111"),
    ("000 001", "220 220"),
    ("000 011", "111 111"),
    ("000 111", "111 111"),
    ("000 001 010", "111 222 400"),
    ("000 001 110", "111 220 220"),
    ("000 011 101", "111 111 111"),
    ("000 001 010 011", "400 400"),
    ("000 001 010 100", "111 111 222 222"),
    ("000 001 011 111", "022 111 220 333"),
    ("000 001 010 111", "111 111 222 400"),
    ("000 001 110 111", "220 220 220 220"),
    ("000 011 101 110", "111 111 111 111"),
)


def hausdorff95(truth: np.ndarray, predicted: np.ndarray, spacing: np.ndarray) -> float:
    """Return the 95 % Hausdorff distance of two regions in millimetres.

    Args:
        truth, predicted: (x, y, z) bool, at least one voxel in each.
        spacing: (3,) mm between voxels along each axis.
    """
    (of_truth, truth_areas), (of_predicted, predicted_areas) = (
        surface(region, spacing) for region in (truth, predicted)
    )
    # A tree of the corners, and no map of distances: one stray voxel in the far end of a volume
    # would have such a map cover all between.
    to_predicted, _ = KDTree(of_predicted).query(of_truth)
    to_truth, _ = KDTree(of_truth).query(of_predicted)
    return max(_kept_to(to_predicted, truth_areas), _kept_to(to_truth, predicted_areas))


def hausdorff95_of_voxels(truth: np.ndarray, predicted: np.ndarray, spacing: np.ndarray) -> float:
    """Return the 95 % Hausdorff distance between the edge voxels of two regions in millimetres.

    The definition of MONAI's `compute_hausdorff_distance(percentile=95)` and of scipy: the edge is
    every voxel of the region that an erosion by one step along the axes removes, and all edge
    voxels count alike, whatever area they stand for. Of the distances from each edge voxel to the
    nearest of the other region the 95th percentile is taken, interpolated, in both directions, and
    the larger counts. https://docs.monai.io/en/stable/metrics.html#hausdorff-distance

    Args:
        truth, predicted: (x, y, z) bool, at least one voxel in each.
        spacing: (3,) mm between voxels along each axis.
    """
    reference_edges, predicted_edges = (
        _edge_voxels(region) * np.asarray(spacing) for region in (truth, predicted)
    )
    there, _ = KDTree(predicted_edges).query(reference_edges)
    back, _ = KDTree(reference_edges).query(predicted_edges)
    return float(max(np.percentile(there, 100 * SHARE), np.percentile(back, 100 * SHARE)))


def _edge_voxels(region: np.ndarray) -> np.ndarray:
    """Return the indices of a region's edge voxels: (n, 3)."""
    box = _box(region)
    inside = region[box]
    return np.argwhere(inside & ~ndimage.binary_erosion(inside)) + [side.start for side in box]


# By the names of `evaluate.hd95`.
HAUSDORFF95 = {"surface": hausdorff95, "voxels": hausdorff95_of_voxels}


def surface(region: np.ndarray, spacing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where a region's surface runs, and how much of it.

    Args:
        region: (x, y, z) bool.
        spacing: (3,) mm between voxels along each axis.

    Returns:
        (n, 3) float64 corners of voxels that lie on the surface, in mm from the volume's first
        corner; (n,) float64 area of each one's piece in mm².
    """
    spacing = np.asarray(spacing, np.float64)
    box = _box(region)
    voxels = np.pad(region[box], 1).view(np.uint8)
    x, y, z = (side - 1 for side in voxels.shape)
    cubes = np.zeros((x, y, z), np.uint8)
    for bit, (i, j, k) in enumerate(product((0, 1), repeat=3)):
        cubes |= voxels[i : i + x, j : j + y, k : k + z] << bit
    # Cubes with corners on both sides, told by one comparison: 0 - 1 is 255.
    crossed = cubes - np.uint8(1) < 254
    corners = np.argwhere(crossed) + [side.start for side in box]
    # A normal's component along an axis is an area across it.
    areas = np.linalg.norm(_normals() * (spacing.prod() / spacing), axis=2).sum(axis=1)
    return corners * spacing, areas[cubes[crossed]]


def _box(region: np.ndarray) -> tuple[slice, slice, slice]:
    sides = []
    for axis in range(3):
        (inside,) = np.nonzero(region.any(axis=tuple({0, 1, 2} - {axis})))
        sides.append(slice(inside[0], inside[-1] + 1) if len(inside) else slice(0, 0))
    return sides[0], sides[1], sides[2]


def _kept_to(distances: np.ndarray, areas: np.ndarray) -> float:
    """Return the smallest distance to which 95 % of the area keep."""
    order = np.argsort(distances)
    share = np.cumsum(areas[order])
    return float(distances[order[np.searchsorted(share, _ENOUGH * share[-1])]])


@cache
def _normals() -> np.ndarray:
    """Return the triangles of each of the 256 cubes: (256, 4, 3) normals without their signs.

    A cube's number has a bit for each corner that is inside, the last axis changing first. An area
    does not ask which way the triangle looks.
    """
    normals = np.zeros((256, 4, 3))
    for inside, triangles in _CUBES:
        corners = np.array([[int(digit) for digit in corner] for corner in inside.split()])
        laid = np.array([[int(digit) / 8 for digit in digits] for digits in triangles.split()])
        for axes, mirrored in product(permutations(range(3)), product((0, 1), repeat=3)):
            turned = corners[:, axes] ^ mirrored
            cube = int((1 << turned @ (4, 2, 1)).sum())
            normals[[cube, 255 - cube], : len(laid)] = laid[:, axes]
    return normals
