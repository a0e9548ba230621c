"""A section as two planes of stain depth, and the connective tissue below the patterns."""

import dataclasses

import numpy as np
from PIL import Image

GRAIN = 16  # px of level 0 per cell of the coarse maps

_WAVE = np.rint(127.5 + 127.5 * np.sin(np.arange(256) * (2 * np.pi / 256))).astype(np.uint8)
_WAVES_PER_HILL = 11.0  # number of parallel fibres where the flow rises by one


@dataclasses.dataclass
class Section:
    """The planes of a section, to which patterns are rendered.

    `haematoxylin` and `eosin` are (height, width) uint8 depths of stain. `inside` is a coarse mask
    of the tissue and `lie` a coarse map of the direction of its fibres, radians from the x axis:
    (rows, columns) bool and float, one cell per `GRAIN` px.
    """

    haematoxylin: np.ndarray
    eosin: np.ndarray
    inside: np.ndarray
    lie: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in px of level 0."""
        height, width = self.eosin.shape
        return height, width

    def within(self, points: np.ndarray) -> np.ndarray:
        """Return the points, of (n, 2), x and y in px, that are in tissue: (m, 2)."""
        return points[at_points(self.inside, points)]


def at_points(coarse: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the values of a coarse map at points (n, 2), x and y in px, clipped to its edge."""
    cells = np.floor(points / GRAIN).astype(np.int64)
    columns = np.clip(cells[:, 0], 0, coarse.shape[1] - 1)
    rows = np.clip(cells[:, 1], 0, coarse.shape[0] - 1)
    return coarse[rows, columns]


def noise(rng: np.random.Generator, shape: tuple[int, int], scale: int) -> np.ndarray:
    """Return smooth noise (height, width) uint8 whose hills are about `scale` px wide."""
    # Pillow resizes bytes with integers: the same on every machine, unlike a blur by FFT.
    coarse = rng.integers(0, 256, _cells(shape, scale), dtype=np.uint8)
    return _enlarge(coarse, shape, Image.Resampling.BICUBIC)


def fine_noise(rng: np.random.Generator, shape: tuple[int, int], scale: int) -> np.ndarray:
    """Return smooth noise (height, width) float32 in about 0..1, not quantised to bytes."""
    coarse = rng.random(_cells(shape, scale), dtype=np.float32)
    return _enlarge(coarse, shape, Image.Resampling.BICUBIC)


def sites(
    rng: np.random.Generator, shape: tuple[int, int], spacing: float, shake: float = 0.3
) -> np.ndarray:
    """Return points (n, 2), x and y in px, on a hexagonal lattice with random shifts.

    Like cells, they neither overlap nor leave holes. `spacing` is in px; a point is shifted by at
    most `shake` times the spacing along each axis.
    """
    row_height = spacing * 0.866
    rows, columns = int(shape[0] / row_height) + 2, int(shape[1] / spacing) + 2
    row, column = np.mgrid[0:rows, 0:columns]
    lattice = np.stack([(column + row % 2 * 0.5) * spacing, row * row_height], axis=-1)
    return (lattice + rng.uniform(-shake, shake, lattice.shape) * spacing).reshape(-1, 2)


def connective_tissue(
    rng: np.random.Generator, inside: np.ndarray, shape: tuple[int, int]
) -> Section:
    """Return a section (height, width) of wavy collagen fibres without cells."""
    half = (shape[0] // 2 + 1, shape[1] // 2 + 1)
    flow = fine_noise(rng, half, 150) + 0.25 * fine_noise(rng, half, 30)
    fibres = _WAVE[(flow * (256 * _WAVES_PER_HILL)).astype(np.int32) & 255]
    eosin = 46 + fibres // 5
    haematoxylin = 22 - fibres // 20
    coarse = np.asarray(Image.fromarray(flow).resize(inside.shape[::-1], Image.Resampling.BOX))
    down, right = np.gradient(coarse.astype(np.float64))
    # Fibres follow the lines of equal flow.
    lie = np.arctan2(right, -down)
    planes = [_enlarge(plane.astype(np.uint8), shape) for plane in (haematoxylin, eosin)]
    return Section(planes[0], planes[1], inside, lie)


def _cells(shape: tuple[int, int], scale: int) -> tuple[int, int]:
    return shape[0] // scale + 2, shape[1] // scale + 2


def _enlarge(
    plane: np.ndarray, shape: tuple[int, int], how: Image.Resampling = Image.Resampling.BILINEAR
) -> np.ndarray:
    return np.array(Image.fromarray(plane).resize(shape[::-1], how))
