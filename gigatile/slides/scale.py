"""The scale of a slide: the scale from each source, which one is used, and contradictions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import openslide

from gigatile.slides.dicom import finest_is_resampled
from gigatile.slides.reader import Slide, SlideError

# Sources in order of priority: the sample sheet, the metadata of the scanner, the resolution of the
# TIFF file, the objective.
SOURCES = ("sheet", "file", "resolution", "objective")
# Pixels count as square if their sides differ by at most this fraction.
SQUARE = 0.01
# Two sources contradict each other beyond these fractions: two measured scales; a measured scale
# and an objective. Pixels of scanners with the same objective differ by an eighth.
SAME_MEASURE, SAME_OBJECTIVE = 0.02, 0.2
# The range of plausible resolutions of a scan, in µm. 2,400 dpi, as of photos, would be 10.6 µm.
RESOLUTIONS = (0.02, 10)
_UNITS = {"centimeter": 10_000, "inch": 25_400}  # µm


@dataclass(frozen=True)
class Scale:
    """Micrometres per pixel of level 0.

    Attributes:
        mpp: the scale to use; None if it is unknown.
        source: its source, one of `SOURCES`.
        by_source: the scale from each source that has one.
        contradictions: a sentence for each pair of sources that contradict each other.
    """

    mpp: float | None
    source: str | None
    by_source: Mapping[str, float]
    contradictions: Sequence[str]


def find_scale(
    slide: Slide, sheet_mpp: float | None, objectives: Sequence[tuple[float, float]]
) -> Scale:
    """Return the scale of a slide.

    Args:
        slide: the open slide.
        sheet_mpp: from the sample sheet, if it has one.
        objectives: pairs of an objective and its µm per pixel.

    Raises:
        SlideError: the pixels of the source to use are not square, or level 0 of a DICOM slide is
            missing.
    """
    pairs = _from_metadata(slide.properties) | _from_resolution(slide.properties)
    if slide.vendor == "generic-tiff":
        pairs.pop("file", None)  # OpenSlide computes it from the resolution, without a check
    scales = {} if sheet_mpp is None else {"sheet": sheet_mpp}
    for source, (across, down) in pairs.items():
        if abs(across - down) <= SQUARE * max(across, down):
            scales[source] = across if across == down else (across + down) / 2
        elif not scales:
            raise SlideError(f"its pixels are not square: {across:g} by {down:g} µm")
    from_objective = _from_objective(slide.objective_power, objectives)
    if from_objective is not None:
        scales["objective"] = from_objective
    scales = {source: scales[source] for source in SOURCES if source in scales}
    if finest_is_resampled(slide.properties):
        _check_sheet_confirms(scales)
    first = next(iter(scales), None)
    return Scale(scales[first] if first else None, first, scales, _contradictions(scales))


def _check_sheet_confirms(scales: Mapping[str, float]) -> None:
    """Check that the sheet gives the scale of a finest level that was resampled.

    Raises:
        SlideError: it gives none, or another scale than the file.
    """
    file = scales.get("file")
    if "sheet" in scales and (
        file is None or abs(scales["sheet"] - file) <= SAME_MEASURE * max(scales["sheet"], file)
    ):
        return
    scale, value = ("", "its scale") if file is None else (f", {file:g} µm per pixel,", f"{file:g}")
    raise SlideError(
        f"its finest level{scale} is resampled (DICOM Image Type), so level 0 seems to be missing; "
        f"copy all files of the slide into its folder; if it was exported without level 0, set "
        f"{value} in the sheet's column mpp"
    )


def _from_metadata(properties: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    across = _number(properties.get(openslide.PROPERTY_NAME_MPP_X))
    down = _number(properties.get(openslide.PROPERTY_NAME_MPP_Y))
    return {} if across is None or down is None else {"file": (across, down)}


def _from_resolution(properties: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return the scale from the resolution of the TIFF file, if it has a unit and is plausible."""
    unit = _UNITS.get(properties.get("tiff.ResolutionUnit", ""))
    across = _number(properties.get("tiff.XResolution"))
    down = _number(properties.get("tiff.YResolution"))
    if unit is None or across is None or down is None:
        return {}
    pair = (unit / across, unit / down)
    low, high = RESOLUTIONS
    return {"resolution": pair} if low <= min(pair) and max(pair) <= high else {}


def _from_objective(power: str | None, objectives: Sequence[tuple[float, float]]) -> float | None:
    number = _number(power)
    return next((mpp for objective, mpp in objectives if objective == number), None)


def _contradictions(scales: Mapping[str, float]) -> list[str]:
    contradictions = []
    sources = list(scales)
    for number, first in enumerate(sources):
        for second in sources[number + 1 :]:
            tolerance = SAME_OBJECTIVE if second == "objective" else SAME_MEASURE
            larger = max(scales[first], scales[second])
            if abs(scales[first] - scales[second]) > tolerance * larger:
                contradictions.append(
                    f"{scales[first]:g} µm per pixel by the {first}, {scales[second]:g} by the "
                    f"{second}"
                )
    return contradictions


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
