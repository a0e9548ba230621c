"""Nuclei and small cells, as stamps that are set down by the thousand."""

import dataclasses

import numpy as np

TURNS = 24  # orientations of a stamp over half a turn
VARIANTS = 5  # stamps of one orientation, so that no two neighbours look the same


@dataclasses.dataclass(frozen=True)
class NucleusKind:
    """How one kind of nucleus looks. Lengths in px of level 0, depths in steps of the stain."""

    long: float  # semi-axis
    short: float  # semi-axis
    spread: float  # relative variation of the size
    body: float  # depth of the inside
    rim: float  # what the membrane adds
    clumps: float  # how unevenly the chromatin lies
    nucleolus: float = 0.0  # what the nucleolus adds


COLUMNAR = NucleusKind(long=9.5, short=6.5, spread=0.16, body=80, rim=42, clumps=30, nucleolus=80)
POLYGONAL = NucleusKind(long=10.5, short=8.2, spread=0.28, body=74, rim=60, clumps=36, nucleolus=95)
FLAT = NucleusKind(long=7.5, short=3.2, spread=0.20, body=150, rim=20, clumps=30)
SPINDLE = NucleusKind(long=11, short=2.8, spread=0.25, body=130, rim=20, clumps=30)
LYMPHOCYTE = NucleusKind(long=5.8, short=5.4, spread=0.10, body=170, rim=15, clumps=45)
MACROPHAGE = NucleusKind(long=5.5, short=4.2, spread=0.12, body=110, rim=30, clumps=30)
# Cells whole, which take eosin.
MACROPHAGE_BODY = NucleusKind(long=11, short=9.5, spread=0.15, body=78, rim=6, clumps=18)
RED_CELL = NucleusKind(long=5.6, short=4.6, spread=0.12, body=170, rim=20, clumps=10)


def draw_stamps(rng: np.random.Generator, kind: NucleusKind) -> np.ndarray:
    """Draw the stamps of one kind.

    Returns:
        (TURNS, VARIANTS, side, side) uint8: depth of stain, 0 outside the nucleus. Turn k lies at
        k / TURNS of half a turn from the x axis.
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
    """Set a stamp on `plane` (height, width) uint8, in place, at each point that has room for it.

    Args:
        stamps: from `draw_stamps`.
        points: (n, 2) float, x and y in px.
        angles: (n,) float, radians from the x axis.
        clears: the other stain's plane, emptied where a stamp is set.
    """
    side = stamps.shape[-1]
    corners = np.rint(points).astype(np.int64) - side // 2
    turns = np.rint(angles * (TURNS / np.pi)).astype(np.int64) % TURNS
    variants = rng.integers(0, stamps.shape[1], len(points))
    room = ((corners >= 0) & (corners + side <= plane.shape[::-1])).all(axis=1)
    columns, rows = corners[room].T.tolist()
    chosen = zip(columns, rows, turns[room].tolist(), variants[room].tolist(), strict=True)
    for column, row, turn, variant in chosen:
        stamp = stamps[turn, variant]
        place = (slice(row, row + side), slice(column, column + side))
        # Where two overlap, the deeper stain shows.
        np.maximum(plane[place], stamp, out=plane[place])
        if clears is not None:
            clears[place] *= stamp < 90


def _smooth(grain: np.ndarray) -> np.ndarray:
    """Return noise (..., side, side) with each pixel the mean of its 3x3 block, wrapped round."""
    for axis in (-1, -2):
        grain = grain + np.roll(grain, 1, axis) + np.roll(grain, -1, axis)
    return grain / 3.0  # not 9: the contrast stays
