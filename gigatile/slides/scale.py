"""The scale of a slide: what each source tells of it, which one counts, who contradicts whom."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import openslide

from gigatile.slides.dicom import finest_is_resampled
from gigatile.slides.reader import Slide, SlideError

# Where a scale is taken from, the first one that tells it: the sample sheet, what the scanner's
# software wrote, the resolution of the TIFF file, the objective.
SOURCES = ("sheet", "file", "resolution", "objective")
# A pixel counts as square where its sides differ by less than this share.
SQUARE = 0.01
# Two sources contradict each other beyond this share: measures, and a measure and an objective. The
# pixels of scanners with the same objective differ by an eighth.
SAME_MEASURE, SAME_OBJECTIVE = 0.02, 0.2
# Beyond these a resolution is not one of a scan; 2,400 dots per inch, which is one of photos, would
# be 10.6 µm.
RESOLUTIONS = (0.02, 10)
_UNITS = {"centimeter": 10_000, "inch": 25_400}  # µm


@dataclass(frozen=True)
class Scale:
    """Micrometres per pixel of level 0.

    Attributes:
        mpp: what counts, or None where nobody tells.
        source: who told it, one of `SOURCES`.
        told: what each source tells.
        contradictions: which sources differ by more than they should, as sentences.
    """

    mpp: float | None
    source: str | None
    told: Mapping[str, float]
    contradictions: Sequence[str]


def scale_of(
    slide: Slide, sheet_mpp: float | None, objectives: Sequence[tuple[float, float]]
) -> Scale:
    """Find the scale of a slide.

    Args:
        slide: the open slide.
        sheet_mpp: from the sample sheet, where it has one.
        objectives: pairs of an objective and the µm per pixel that it stands for.

    Raises:
        SlideError: the pixels of the source that counts are not square, or level 0 of a DICOM slide
            is missing.
    """
    pairs = _measured(slide.properties) | _of_resolution(slide.properties)
    if slide.vendor == "generic-tiff":
        pairs.pop("file", None)  # OpenSlide has it from the resolution, whatever that is
    told = {} if sheet_mpp is None else {"sheet": sheet_mpp}
    for source, (across, down) in pairs.items():
        if abs(across - down) <= SQUARE * max(across, down):
            told[source] = across if across == down else (across + down) / 2
        elif not told:
            raise SlideError(f"its pixels are not square: {across:g} by {down:g} µm")
    with_objective = _of_objective(slide.objective_power, objectives)
    if with_objective is not None:
        told["objective"] = with_objective
    told = {source: told[source] for source in SOURCES if source in told}
    if finest_is_resampled(slide.properties):
        _check_sheet_confirms(told)
    first = next(iter(told), None)
    return Scale(told[first] if first else None, first, told, _contradictions(told))


def _check_sheet_confirms(scales: Mapping[str, float]) -> None:
    """Check that the sheet gives the scale of a finest level that is itself resampled.

    Raises:
        SlideError: it gives none, or not that of the file.
    """
    file = scales.get("file")
    if "sheet" in scales and (
        file is None or abs(scales["sheet"] - file) <= SAME_MEASURE * max(scales["sheet"], file)
    ):
        return
    scale, value = ("", "its scale") if file is None else (f", {file:g} µm per pixel,", f"{file:g}")
    raise SlideError(
        f"its finest level{scale} is resampled (DICOM Image Type), so level 0 seems to be missing; "
        f"copy all files of the slide into its folder, or, if it was exported so, give {value} in "
        "the sheet's column mpp"
    )


def _measured(properties: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    across = _number(properties.get(openslide.PROPERTY_NAME_MPP_X))
    down = _number(properties.get(openslide.PROPERTY_NAME_MPP_Y))
    return {} if across is None or down is None else {"file": (across, down)}


def _of_resolution(properties: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return the scale that the TIFF file's resolution gives, where its unit makes it a measure."""
    unit = _UNITS.get(properties.get("tiff.ResolutionUnit", ""))
    across = _number(properties.get("tiff.XResolution"))
    down = _number(properties.get("tiff.YResolution"))
    if unit is None or across is None or down is None:
        return {}
    pair = (unit / across, unit / down)
    low, high = RESOLUTIONS
    return {"resolution": pair} if low <= min(pair) and max(pair) <= high else {}


def _of_objective(power: str | None, objectives: Sequence[tuple[float, float]]) -> float | None:
    number = _number(power)
    return next((mpp for known, mpp in objectives if known == number), None)


def _contradictions(told: Mapping[str, float]) -> list[str]:
    found = []
    sources = list(told)
    for number, one in enumerate(sources):
        for other in sources[number + 1 :]:
            same = SAME_OBJECTIVE if other == "objective" else SAME_MEASURE
            if abs(told[one] - told[other]) > same * max(told[one], told[other]):
                found.append(
                    f"{told[one]:g} µm per pixel by the {one}, {told[other]:g} by the {other}"
                )
    return found


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
