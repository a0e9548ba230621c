"""The 95 % Hausdorff distance between the surfaces of two regions, in millimetres.

Tools define the surface and the percentile differently, so their distances of the same pair differ
(Podobnik and Vrtovec 2024, https://doi.org/10.1007/978-3-031-72114-4_30). `hausdorff95` has the
definition, and the results, of the package surface-distance 0.1, with which the BraTS challenge has
scored since 2023 (https://github.com/rachitsaluja/BraTS-2023-Metrics):

- The surface consists of the corners where voxels inside and outside the region meet. Everything
  outside the volume is outside the region. Each corner represents the surface element that marching
  cubes place there, halfway between voxels (Lorensen and Cline 1987,
  https://doi.org/10.1145/37402.37422), and is weighted by the area of that element in mm².
- The distance from one surface to the other is the 95th percentile, weighted by area, of the
  distances from each corner to the nearest corner of the other surface.
- The result is the larger of the two directions (Menze et al. 2015,
  https://doi.org/10.1109/TMI.2014.2377694). MedPy instead takes the percentile of both together.

Weighting by area makes the distance independent of the orientation of the surface: with slices of
5 mm and pixels of 1 mm, the sides of a region have more voxels per area than its top and bottom.

`hausdorff95_of_voxels` is the definition of MONAI, which counts voxels.
"""

from functools import cache
from itertools import permutations, product

import numpy as np
from scipy import ndimage
from scipy.spatial import KDTree

PERCENTILE = 0.95
# Tolerates rounding: nineteen of twenty equal elements are exactly 95 % of the area.
_ENOUGH = PERCENTILE - 1e-9

# The triangles of marching cubes in a cube of eight voxels: the corners inside the region, and the
# normal of each triangle, with the triangle's area as its length, in eighths of a face. All other
# cubes are rotations, mirror images or complements of these.
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


def hausdorff95(reference: np.ndarray, predicted: np.ndarray, spacing: np.ndarray) -> float:
    """Return the 95 % Hausdorff distance between the surfaces of two regions in millimetres.

    Args:
        reference: (x, y, z) bool, with at least one voxel.
        predicted: (x, y, z) bool, with at least one voxel.
        spacing: (3,) mm between voxels along each axis.
    """
    corners, areas = surface(reference, spacing)
    predicted_corners, predicted_areas = surface(predicted, spacing)
    # A tree of the corners is faster than a distance map: a single distant voxel would make the map
    # as large as the volume.
    forward, _ = KDTree(predicted_corners).query(corners)
    backward, _ = KDTree(corners).query(predicted_corners)
    return max(_area_percentile(forward, areas), _area_percentile(backward, predicted_areas))


def hausdorff95_of_voxels(
    reference: np.ndarray, predicted: np.ndarray, spacing: np.ndarray
) -> float:
    """Return the 95 % Hausdorff distance between the edge voxels of two regions in millimetres.

    As MONAI's `compute_hausdorff_distance(percentile=95)`: the edge voxels are those that a binary
    erosion of the region removes, and all have the same weight. The result is the larger one of the
    95th percentiles, interpolated, of the distances to the nearest edge voxel of the other region.
    https://docs.monai.io/en/stable/metrics.html#hausdorff-distance

    Args:
        reference: (x, y, z) bool, with at least one voxel.
        predicted: (x, y, z) bool, with at least one voxel.
        spacing: (3,) mm between voxels along each axis.
    """
    edges, predicted_edges = (
        _edge_voxels(region) * np.asarray(spacing) for region in (reference, predicted)
    )
    forward, _ = KDTree(predicted_edges).query(edges)
    backward, _ = KDTree(edges).query(predicted_edges)
    return float(
        max(np.percentile(distances, 100 * PERCENTILE) for distances in (forward, backward))
    )


def _edge_voxels(region: np.ndarray) -> np.ndarray:
    """Return the indices of a region's edge voxels: (n, 3)."""
    box = _box(region)
    inside = region[box]
    return np.argwhere(inside & ~ndimage.binary_erosion(inside)) + [side.start for side in box]


# The definitions, by the values of the setting `evaluate.hd95`.
HAUSDORFF95 = {"surface": hausdorff95, "voxels": hausdorff95_of_voxels}


def surface(region: np.ndarray, spacing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the surface elements of a region: their positions and areas.

    Args:
        region: (x, y, z) bool.
        spacing: (3,) mm between voxels along each axis.

    Returns:
        (n, 3) float64, the corners of voxels on the surface, in mm from the first corner of the
        volume; (n,) float64, the area of each element in mm².
    """
    spacing = np.asarray(spacing, np.float64)
    box = _box(region)
    voxels = np.pad(region[box], 1).view(np.uint8)
    x, y, z = (side - 1 for side in voxels.shape)
    cubes = np.zeros((x, y, z), np.uint8)
    for bit, (i, j, k) in enumerate(product((0, 1), repeat=3)):
        cubes |= voxels[i : i + x, j : j + y, k : k + z] << bit
    # Neither 0 (all voxels outside) nor 255 (all inside), in one comparison: 0 - 1 is 255.
    crossed = cubes - np.uint8(1) < 254
    corners = np.argwhere(crossed) + [side.start for side in box]
    # The component of a normal along an axis is the area of its projection along this axis.
    areas = np.linalg.norm(_normals() * (spacing.prod() / spacing), axis=2).sum(axis=1)
    return corners * spacing, areas[cubes[crossed]]


def _box(region: np.ndarray) -> tuple[slice, slice, slice]:
    sides = []
    for axis in range(3):
        (inside,) = np.nonzero(region.any(axis=tuple({0, 1, 2} - {axis})))
        sides.append(slice(inside[0], inside[-1] + 1) if len(inside) else slice(0, 0))
    return sides[0], sides[1], sides[2]


def _area_percentile(distances: np.ndarray, areas: np.ndarray) -> float:
    """Return the smallest distance that 95 % of the area do not exceed."""
    order = np.argsort(distances)
    total = np.cumsum(areas[order])
    return float(distances[order[np.searchsorted(total, _ENOUGH * total[-1])]])


@cache
def _normals() -> np.ndarray:
    """Return the normals of the triangles of all 256 cubes, without signs: (256, 4, 3).

    The number of a cube has a bit for each corner that is inside; the last axis changes fastest.
    """
    normals = np.zeros((256, 4, 3))
    for inside, triangles in _CUBES:
        corners = np.array([[int(digit) for digit in corner] for corner in inside.split()])
        vectors = np.array([[int(digit) / 8 for digit in digits] for digits in triangles.split()])
        for axes, mirrored in product(permutations(range(3)), product((0, 1), repeat=3)):
            rotated = corners[:, axes] ^ mirrored
            cube = int((1 << rotated @ (4, 2, 1)).sum())
            normals[[cube, 255 - cube], : len(vectors)] = vectors[:, axes]
    return normals
