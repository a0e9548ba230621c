"""Which tiles are kept, marked or dropped: the rules of the settings over what was measured."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gigatile.settings.tiles import TileSettings
from gigatile.slides.quality import INKS, Pixels
from gigatile.slides.tissue import Light

# Rules over areas seen on the overview, and over a tile's own pixels: in this order, so that a tile
# with more than one fault is dropped for the first of them.
BY_AREA = ("pen", "folds")
BY_PIXELS = ("blur", "uniform", "clipped", "stripes")


def is_background(tissue: np.ndarray, max_background: float) -> np.ndarray:
    """Return which tiles have too little tissue: (n,) bool.

    Args:
        tissue: share of each tile's area, (n,) in 0-1.
        max_background: the largest share of background that a tile may have.
    """
    # Shares are sums of areas; a tile of just the wanted share is kept.
    return 1 - tissue > max_background + 1e-9


@dataclass(frozen=True)
class Verdict:
    """Why a tile is dropped, None if it is kept; and which rules mark it."""

    dropped: str | None
    marks: tuple[str, ...]


class Rules:
    """The rules of the settings, as they hold for a slide that was lit in some way."""

    def __init__(self, settings: TileSettings, light: Light) -> None:
        names = (*BY_AREA, *BY_PIXELS)
        # What the measures take for a fault is, in fluorescence, how a good slide looks.
        judged = light == "transmitted"
        self._rules = {name: getattr(settings, name) if judged else "off" for name in names}
        self._limits = {name: getattr(settings, f"{name}_limit") for name in self._rules}
        self._max_background = settings.max_background

    @property
    def reads_pixels(self) -> bool:
        """Whether any rule asks for more than the overview."""
        return any(self._rules[name] != "off" for name in BY_PIXELS)

    def of_areas(self, areas: Mapping[str, np.ndarray]) -> dict[int, Verdict]:
        """Return the verdict on each tile of which the overview alone tells a fault.

        Args:
            areas: shares of each tile's area by name, (n,) in 0-1.
        """
        faults = {
            "pen": np.sum([areas[f"pen_{ink}"] for ink in INKS], axis=0),
            "folds": areas["folds"],
        }
        background = is_background(areas["tissue"], self._max_background)
        found = {int(one): Verdict("background", ()) for one in np.flatnonzero(background)}
        met = {name: faults[name] > self._limits[name] for name in BY_AREA}
        for one in np.flatnonzero(np.any(list(met.values()), axis=0) & ~background).tolist():
            found[one] = self._verdict([name for name in BY_AREA if met[name][one]])
        return found

    def of_pixels(self, measured: Pixels) -> Verdict:
        """Return the verdict on a tile whose pixels were measured."""
        met = {
            "blur": measured.sharpness < self._limits["blur"],
            "uniform": measured.contrast < self._limits["uniform"],
            "clipped": measured.clipped > self._limits["clipped"],
            "stripes": measured.stripes > self._limits["stripes"],
        }
        return self._verdict([name for name in BY_PIXELS if met[name]])

    def _verdict(self, met: list[str]) -> Verdict:
        dropped = next((name for name in met if self._rules[name] == "drop"), None)
        return Verdict(dropped, tuple(name for name in met if self._rules[name] == "mark"))


def counted(reasons: Mapping[int, str], marks: Mapping[int, tuple[str, ...]]) -> dict[str, dict]:
    """Return how many tiles were dropped for which reason, and how many are marked with which."""
    dropped = Counter(reasons.values())
    marked = Counter(mark for one in marks.values() for mark in one)
    order = ("background", *BY_AREA, "unreadable", *BY_PIXELS)
    return {
        "dropped": {"background": 0} | {name: dropped[name] for name in order if dropped[name]},
        "marked": {name: marked[name] for name in order if marked[name]},
    }
