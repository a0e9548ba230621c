from pathlib import Path

import pydicom
import pytest
import tifffile
from format_dicom import write_dicom
from known_slides import glass, write_svs

from gigatile.settings.tiles import TileSettings
from gigatile.slides.reader import SlideError, open_slide
from gigatile.slides.scale import Scale, find_scale

OBJECTIVES = TileSettings().objectives


def scale_of(path: Path, sheet: float | None = None, objectives=OBJECTIVES) -> Scale:
    with open_slide(path) as slide:
        return find_scale(slide, sheet, objectives)


def aperio(path: Path, mpp: object, power: object, **layout) -> Path:
    return write_svs(path / "s.svs", glass(80, 80), mpp=mpp, power=power, **layout)


def tiff(path: Path, resolution: tuple[float, float], unit: str) -> Path:
    tifffile.imwrite(
        path / "s.tiff",
        glass(256, 256),
        photometric="rgb",
        tile=(64, 64),
        resolution=resolution,
        resolutionunit=unit,
        metadata=None,
    )
    return path / "s.tiff"


# --- Priority of sources


@pytest.mark.parametrize(
    ("sheet", "mpp", "power", "used", "by_source"),
    [
        (None, 0.25, 40, (0.25, "file"), {"file": 0.25, "objective": 0.25}),
        (0.26, 0.25, 40, (0.26, "sheet"), {"sheet": 0.26, "file": 0.25, "objective": 0.25}),
        (None, None, 20, (0.5, "objective"), {"objective": 0.5}),
        (None, None, 33, (None, None), {}),  # not in the table of objectives
        (None, None, None, (None, None), {}),
        (0.3, None, None, (0.3, "sheet"), {"sheet": 0.3}),
    ],
)
def test_priority_of_scale_sources(tmp_path, sheet, mpp, power, used, by_source):
    scale = scale_of(aperio(tmp_path, mpp, power), sheet)
    assert (scale.mpp, scale.source) == used
    assert scale.by_source == by_source


def test_objectives_can_be_configured(tmp_path):
    path = aperio(tmp_path, None, 20)
    assert scale_of(path, objectives=()).mpp is None
    assert scale_of(path, objectives=((20, 0.46),)).mpp == 0.46


# 1e999 overflows to infinity.
@pytest.mark.parametrize("mpp", [None, "nan", "inf", "1e999", "-0.5", "0.0", "unknown"])
def test_implausible_mpp_is_ignored(tmp_path, mpp):
    assert scale_of(aperio(tmp_path, mpp, None)).mpp is None


# --- The resolution of a TIFF file


@pytest.mark.parametrize(
    ("resolution", "unit", "mpp"),
    [
        ((20_000, 20_000), "CENTIMETER", 0.5),
        ((101_600, 101_600), "INCH", 0.25),
        ((72, 72), "INCH", None),  # of a screen, not of a scanner
        ((300, 300), "INCH", None),
        ((600, 600), "INCH", None),
        ((20_000, 20_000), "NONE", None),  # a ratio without unit
    ],
)
def test_resolution_needs_a_unit(tmp_path, resolution, unit, mpp):
    scale = scale_of(tiff(tmp_path, resolution, unit))
    if mpp is None:
        assert (scale.mpp, scale.source) == (None, None)
    else:
        assert scale.mpp == pytest.approx(mpp)
        assert scale.source == "resolution"


def test_metadata_has_priority_over_resolution(tmp_path):
    path = aperio(tmp_path, 0.5, 20, resolution=(40_000, 40_000), resolutionunit="CENTIMETER")
    scale = scale_of(path)
    assert (scale.mpp, scale.source) == (0.5, "file")
    assert scale.by_source == {"file": 0.5, "resolution": 0.25, "objective": 0.5}


# --- Non-square pixels


def test_nearly_square_pixels_are_accepted(tmp_path):
    scale = scale_of(tiff(tmp_path, (20_000, 20_100), "CENTIMETER"))
    assert scale.mpp == pytest.approx((10_000 / 20_000 + 10_000 / 20_100) / 2)


def test_sheet_overrides_non_square_pixels(tmp_path):
    path = tiff(tmp_path, (20_000, 40_000), "CENTIMETER")
    with pytest.raises(SlideError, match=r"not square: 0\.5 by 0\.25 µm"):
        scale_of(path)
    assert scale_of(path, 0.5).mpp == 0.5


# --- Contradictions are reported; the mpp is not averaged


@pytest.mark.parametrize(
    ("sheet", "mpp", "power", "contradictions"),
    [
        (None, 0.499, 20, []),
        (None, 0.4537, 20, []),  # Hamamatsu's 20x
        (None, 0.2208, 40, []),  # and its 40x
        (None, 0.25, 20, ["0.25 µm per pixel by the file, 0.5 by the objective"]),
        (0.5, 0.499, 20, []),
        (0.5, 0.46, 20, ["0.5 µm per pixel by the sheet, 0.46 by the file"]),
        (
            *(0.5, 0.25, 40),
            [
                "0.5 µm per pixel by the sheet, 0.25 by the file",
                "0.5 µm per pixel by the sheet, 0.25 by the objective",
            ],
        ),
    ],
)
def test_contradicting_sources_are_reported(tmp_path, sheet, mpp, power, contradictions):
    scale = scale_of(aperio(tmp_path, mpp, power), sheet)
    assert scale.contradictions == contradictions
    assert scale.mpp == (mpp if sheet is None else sheet)


# --- DICOM without level 0


def test_dicom_folder_without_level_0_is_refused(tmp_path):
    """OpenSlide opens it, with level 1, of 2 µm per pixel, as level 0."""
    path = write_dicom(tmp_path / "s", glass(512, 512), mpp=0.5)
    level_1 = path.with_name("level-1.dcm")
    assert scale_of(level_1).mpp == 0.5, "any file of the folder opens the slide"
    path.unlink()
    reason = r"its finest level, 2 µm per pixel, is resampled .*; copy all files .* set 2 in the "
    for sheet in (None, 0.5):
        with pytest.raises(SlideError, match=reason):
            scale_of(level_1, sheet)
    assert scale_of(level_1, 2.01).mpp == 2.01


def test_resampled_dicom_slide_needs_an_mpp_in_the_sheet(tmp_path):
    dataset = pydicom.dcmread(write_dicom(tmp_path / "made", glass(512, 512)))
    dataset.ImageType = ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED"]
    del dataset.SharedFunctionalGroupsSequence
    (tmp_path / "s").mkdir()
    dataset.save_as(tmp_path / "s/level-0.dcm")
    with pytest.raises(SlideError, match=r"its finest level is resampled .* set its scale in the"):
        scale_of(tmp_path / "s/level-0.dcm", None, ())
    assert scale_of(tmp_path / "s/level-0.dcm", 1, ()).mpp == 1
