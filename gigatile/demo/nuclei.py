"""Nuclei and small cells: stamps that are rendered once and copied to thousands of positions."""

import dataclasses

import numpy as np

TURNS = 24  # orientations of a stamp over half a turn
VARIANTS = 5  # different stamps per orientation


@dataclasses.dataclass(frozen=True)
class NucleusKind:
    """The appearance of a kind of nucleus: lengths in px of level 0, depths in stain steps."""

    long: float  # semi-axis
    short: float  # semi-axis
    spread: float  # relative variation of the size
    body: float  # depth of the inside
    rim: float  # additional depth of the membrane
    clumps: float  # variation of the depth, by clumps of chromatin
    nucleolus: float = 0.0  # additional depth of the nucleolus


COLUMNAR = NucleusKind(long=9.5, short=6.5, spread=0.16, body=80, rim=42, clumps=30, nucleolus=80)
POLYGONAL = NucleusKind(long=10.5, short=8.2, spread=0.28, body=74, rim=60, clumps=36, nucleolus=95)
FLAT = NucleusKind(long=7.5, short=3.2, spread=0.20, body=150, rim=20, clumps=30)
SPINDLE = NucleusKind(long=11, short=2.8, spread=0.25, body=130, rim=20, clumps=30)
LYMPHOCYTE = NucleusKind(long=5.8, short=5.4, spread=0.10, body=170, rim=15, clumps=45)
MACROPHAGE = NucleusKind(long=5.5, short=4.2, spread=0.12, body=110, rim=30, clumps=30)
# Whole cells, stained with eosin.
MACROPHAGE_BODY = NucleusKind(long=11, short=9.5, spread=0.15, body=78, rim=6, clumps=18)
RED_CELL = NucleusKind(long=5.6, short=4.6, spread=0.12, body=170, rim=20, clumps=10)


def draw_stamps(rng: np.random.Generator, kind: NucleusKind) -> np.ndarray:
    """Render the stamps of a kind of nucleus.

    Returns:
        (TURNS, VARIANTS, side, side) uint8: depth of stain, 0 outside the nucleus. The angle to the
        x axis of turn k is k / TURNS of half a turn.
    """
    reach = int(kind.long * (1 + 2 * kind.spread)) + 3
    side = 2 * reach + 1
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(np.float64)
    angle = (np.arange(TURNS) * np.pi / TURNS)[:, None, None, None]
    size = rng.uniform(1 - kind.spread, 1 + kind.spread, (2, TURNS, VARIANTS, 1, 1))
    grain = _smooth(rng.uniform(-1, 1, (TURNS, VARIANTS, side, side)))

    along = (x * np.cos(angle) + y * np.sin(angle)) / (kind.long * size[0])
    across = (y * np.cos(angle) - x * np.sin(angle)) / (kind.short * size[1])
    radius = np.sqrt(along * along + across * across) + 0.12 * grain  # a bumpy outline
    inside = np.clip((1 - radius) * kind.short / 1.6, 0, 1)
    depth = kind.body + kind.rim * np.clip(1 - np.abs(radius - 0.82) * 5, 0, 1)
    depth = depth + kind.clumps * grain
    if kind.nucleolus:
        off = rng.uniform(-0.3, 0.3, (2, TURNS, VARIANTS, 1, 1))
        away = (along - off[0]) ** 2 + (across - off[1]) ** 2
        depth = depth + kind.nucleolus * np.clip(1.6 - away * 26, 0, 1)
    return np.rint(np.clip(inside * depth, 0, 255)).astype(np.uint8)


def set_down(
    rng: np.random.Generator,
    plane: np.ndarray,
    stamps: np.ndarray,
    points: np.ndarray,
    angles: np.ndarray,
    clears: np.ndarray | None = None,
) -> None:
    """Copy a stamp to `plane` (height, width) uint8, in place, at each point where it fits.

    Args:
        stamps: from `draw_stamps`.
        points: (n, 2) float, x and y in px.
        angles: (n,) float, radians from the x axis.
        clears: the plane of the other stain, set to 0 under the stamps.
    """
    side = stamps.shape[-1]
    corners = np.rint(points).astype(np.int64) - side // 2
    turns = np.rint(angles * (TURNS / np.pi)).astype(np.int64) % TURNS
    variants = rng.integers(0, stamps.shape[1], len(points))
    fits = ((corners >= 0) & (corners + side <= plane.shape[::-1])).all(axis=1)
    columns, rows = corners[fits].T.tolist()
    chosen = zip(columns, rows, turns[fits].tolist(), variants[fits].tolist(), strict=True)
    for column, row, turn, variant in chosen:
        stamp = stamps[turn, variant]
        box = (slice(row, row + side), slice(column, column + side))
        # Overlapping stamps: the deeper stain is visible.
        np.maximum(plane[box], stamp, out=plane[box])
        if clears is not None:
            clears[box] *= stamp < 90


def _smooth(grain: np.ndarray) -> np.ndarray:
    """Return noise (..., side, side) averaged over 3x3 blocks, with periodic borders."""
    for axis in (-1, -2):
        grain = grain + np.roll(grain, 1, axis) + np.roll(grain, -1, axis)
    return grain / 3.0  # not 9, to keep the contrast
