"""The tile filter: which tiles are kept, marked or dropped by the rules in the settings."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gigatile.settings.tiles import TileSettings
from gigatile.slides.quality import INKS, PixelMeasures
from gigatile.slides.state import Illumination

# Rules on areas of the overview, and rules on a tile's own pixels. A tile that breaks several rules
# is dropped for the first one in this order.
BY_AREA = ("pen", "folds")
BY_PIXELS = ("blur", "uniform", "clipped", "stripes")


def is_background(tissue: np.ndarray, max_background: float) -> np.ndarray:
    """Return which tiles have too little tissue: (n,) bool.

    Args:
        tissue: tissue fraction of each tile's area, (n,) in 0-1.
        max_background: the largest background fraction that a tile may have.
    """
    # The fractions are sums with rounding errors; a tile at exactly the limit is kept.
    return 1 - tissue > max_background + 1e-9


@dataclass(frozen=True)
class Verdict:
    """Why a tile is dropped, None if it is kept; and the rules that mark it."""

    dropped: str | None
    marks: tuple[str, ...]


class FilterRules:
    """The rules of the settings, for a slide with a given illumination."""

    def __init__(self, settings: TileSettings, illumination: Illumination) -> None:
        names = (*BY_AREA, *BY_PIXELS)
        # A good fluorescence slide looks faulty to these measures, so all rules are off.
        brightfield = illumination == "transmitted"
        self._rules = {name: getattr(settings, name) if brightfield else "off" for name in names}
        self._limits = {name: getattr(settings, f"{name}_limit") for name in self._rules}
        self._max_background = settings.max_background

    @property
    def reads_pixels(self) -> bool:
        """Whether any rule needs a tile's own pixels."""
        return any(self._rules[name] != "off" for name in BY_PIXELS)

    def judge_areas(self, areas: Mapping[str, np.ndarray]) -> dict[int, Verdict]:
        """Return the verdicts on the tiles that break a rule on areas, by the tile's index.

        Args:
            areas: fractions of each tile's area by name, (n,) in 0-1.
        """
        faults = {
            "pen": np.sum([areas[f"pen_{ink}"] for ink in INKS], axis=0),
            "folds": areas["folds"],
        }
        background = is_background(areas["tissue"], self._max_background)
        verdicts = {int(tile): Verdict("background", ()) for tile in np.flatnonzero(background)}
        broken = {name: faults[name] > self._limits[name] for name in BY_AREA}
        faulty = np.any(list(broken.values()), axis=0) & ~background
        for tile in np.flatnonzero(faulty).tolist():
            verdicts[tile] = self._verdict([name for name in BY_AREA if broken[name][tile]])
        return verdicts

    def judge_pixels(self, measures: PixelMeasures) -> Verdict:
        """Return the verdict on a tile from the measures of its pixels."""
        broken = {
            "blur": measures.sharpness < self._limits["blur"],
            "uniform": measures.contrast < self._limits["uniform"],
            "clipped": measures.clipped > self._limits["clipped"],
            "stripes": measures.stripes > self._limits["stripes"],
        }
        return self._verdict([name for name in BY_PIXELS if broken[name]])

    def _verdict(self, broken: list[str]) -> Verdict:
        dropped = next((name for name in broken if self._rules[name] == "drop"), None)
        return Verdict(dropped, tuple(name for name in broken if self._rules[name] == "mark"))


def count_tiles(
    dropped: Mapping[int, str], marks: Mapping[int, tuple[str, ...]]
) -> dict[str, dict[str, int]]:
    """Return how many tiles are `dropped` and `marked`, by reason.

    Args:
        dropped: the reason by the tile's index.
        marks: the rules that mark a tile, by its index.
    """
    dropped_by = Counter(dropped.values())
    marked_by = Counter(mark for tile_marks in marks.values() for mark in tile_marks)
    order = ("background", *BY_AREA, "unreadable", *BY_PIXELS)
    return {
        "dropped": {"background": 0}
        | {name: dropped_by[name] for name in order if dropped_by[name]},
        "marked": {name: marked_by[name] for name in order if marked_by[name]},
    }


def no_tiles_reason(dropped: Mapping[int, str], tissue: np.ndarray, max_background: float) -> str:
    """Return the reason why a slide keeps no tile.

    Args:
        dropped: the reason by the tile's index, for all tiles.
        tissue: tissue fraction of each tile's area, (n,) in 0-1.
        max_background: as in the settings.
    """
    counts = {name: n for name, n in count_tiles(dropped, {})["dropped"].items() if n}
    if set(counts) == {"background"}:
        return (
            f"none of its {len(tissue)} tiles has at most {max_background:.0%} background; the "
            f"best has {1 - tissue.max():.1%}"
        )
    listed = ", ".join(f"{n} as {name}" for name, n in counts.items())
    return f"none of its {len(tissue)} tiles is kept; dropped: {listed}"
