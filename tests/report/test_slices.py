"""Slices and outlines are at the correct pixels, for every orientation of the files."""

import base64
import io
import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import nibabel
import numpy as np
import pytest
from case_runs import (
    HEAD,
    SHAPE,
    Box,
    CasePlan,
    boxes,
    build_case_run,
    case_cohort,
    write_volume,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image
from test_self_contained import Page
from written import write_cases

from gigatile.report.cases.slices import (
    PLANES,
    Slices,
    Volumes,
    displayed,
    encode,
    file_slice,
    grey,
    outline,
    stack_numbers,
)
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.geometry import geometry_of
from gigatile.volumes.grid import Grid, plan_grid
from gigatile.volumes.reader import open_volume

AXIAL, CORONAL, SAGITTAL = PLANES
# Left, front and top of the middle; no two of its sides are alike, and so is the other.
TRUTH: Box = ((4, 9), (15, 22), (11, 14))
PREDICTED: Box = ((3, 10), (15, 21), (11, 15))


def filled(path: str, rows: int, columns: int) -> np.ndarray:
    """Return what closed paths of horizontal and vertical lines enclose: (rows, columns) bool."""
    mask = np.zeros((rows, columns), bool)
    for x, y, lines in re.findall(r"M(-?\d+) (-?\d+)([^z]*)z", path):
        column, row = int(x), int(y)
        for way, length in re.findall(r"([hv])(-?\d+)", lines):
            if way == "h":
                column += int(length)
                continue
            end = row + int(length)
            # Everything to the right of a vertical line changes sides.
            mask[min(row, end) : max(row, end), column:] ^= True
            row = end
        assert (column, row) == (int(x), int(y)), "a path that is not closed"
    return mask


@given(
    arrays(
        bool, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9), elements=st.booleans()
    )
)
def test_outline_encloses_exactly_the_mask(mask: np.ndarray) -> None:
    path = outline(mask)
    assert np.array_equal(filled(path, *mask.shape), mask)
    lengths = [abs(int(n)) for n in re.findall(r"[hv](-?\d+)", path)]
    padded = np.pad(mask, 1).astype(int)
    edges = np.abs(np.diff(padded, axis=0)).sum() + np.abs(np.diff(padded, axis=1)).sum()
    assert sum(lengths) == edges


def test_outline_of_a_square_is_four_lines() -> None:
    mask = np.zeros((6, 8), bool)
    mask[1:4, 2:7] = True
    assert outline(mask) == "M2 1h5v3h-5v-3z"
    assert outline(np.zeros((3, 3), bool)) == ""


def test_pixels_that_touch_at_a_corner_have_two_outlines() -> None:
    assert outline(np.eye(2, dtype=bool)).count("M") == 2


def test_slices_follow_the_radiological_convention() -> None:
    """The radiological convention, on a volume with values that encode their position."""
    x, y, z = np.indices((5, 6, 7))
    axial, coronal, sagittal = (
        displayed(x * 100 + y * 10 + z, plane, number)
        for plane, number in ((AXIAL, 2), (CORONAL, 3), (SAGITTAL, 1))
    )
    # The upper left corner: right and front; right and top; front and top.
    assert (axial[0, 0], coronal[0, 0], sagittal[0, 0]) == (452, 436, 156)
    # The lower right one: left and back; left and bottom; back and bottom.
    assert (axial[-1, -1], coronal[-1, -1], sagittal[-1, -1]) == (2, 30, 100)
    assert (axial.shape, coronal.shape, sagittal.shape) == ((6, 5), (7, 5), (7, 6))
    assert AXIAL.ends == ("R", "L", "A", "P")
    assert CORONAL.ends == ("R", "L", "S", "I")
    assert SAGITTAL.ends == ("A", "P", "S", "I")


def test_grey_scale_runs_between_the_limits() -> None:
    pixels = np.array([[-9, -2, 0, 1, 4, 9]], np.float16)
    assert grey(pixels, -2, 4).tolist() == [[0, 0, 0, 128, 255, 255]]


def test_small_images_are_lossless_large_ones_jpeg() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (60, 50)).astype(np.uint8)
    kind, data = encode(pixels).split(";base64,")
    assert kind == "data:image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), pixels)
    assert encode(np.zeros((400, 400), np.uint8)).startswith("data:image/jpeg")


# --- Which slices


def slices(truth: np.ndarray | None, predicted: np.ndarray, tmp_path: Path) -> Slices:
    nibabel.save(nibabel.Nifti1Image(np.zeros(predicted.shape), np.eye(4)), tmp_path / "a.nii")
    grid = plan_grid(geometry_of(open_volume(tmp_path / "a.nii")), None)
    image = np.zeros((*predicted.shape, 1), np.float16)
    settings = VolumeSettings(
        labels="decathlon", modalities=("t1",), regions={"core": ("non_enhancing", "enhancing")}
    )
    return Slices(Volumes(image, truth, predicted, grid), settings)


def test_slice_shows_most_of_the_reference(tmp_path: Path) -> None:
    truth, predicted = np.zeros((2, 9, 10, 11), np.uint8)
    truth[2, 3, 4] = truth[2, 3, 5] = truth[7, 3, 5] = truth[2, 8, 5] = 3
    truth[6, 6:9, 9] = 1  # edema, which is in no region
    # What is found elsewhere, however much it is, does not lead away from it.
    predicted[6, 7, 1:9] = 2
    shown = slices(truth, predicted, tmp_path)
    assert (shown.largest(), shown.of_reference) == ((2, 3, 5), True)
    assert shown.most_different() == [6, 7, 5]
    # Slices that are shown already are skipped.
    assert shown.most_different(shown.largest()) == [6, 7, 4]
    assert shown.most_different((6, 7, 5)) == [2, 3, 4]
    for nothing in (None, np.zeros_like(truth)):
        shown = slices(nothing, predicted, tmp_path)
        assert (shown.largest(), shown.of_reference) == ((6, 7, 1), False)


def test_differences_outside_regions_are_ignored(tmp_path: Path) -> None:
    truth, predicted = np.zeros((2, 9, 10, 11), np.uint8)
    truth[2, 3, 4], predicted[2, 3, 4] = 2, 3  # both are core
    truth[5, 5, 5] = 1  # edema is in no region
    shown = slices(truth, predicted, tmp_path)
    assert shown.most_different() == [None, None, None]
    assert shown.largest() == (2, 3, 4)
    predicted[8, 1, 2] = 2
    assert slices(truth, predicted, tmp_path).most_different() == [8, 1, 2]


def test_stack_has_evenly_spaced_slices() -> None:
    assert stack_numbers(5, 100) == [0, 1, 2, 3, 4]
    for slices_of, most in ((101, 100), (155, 100), (1000, 100), (7, 3)):
        numbers = stack_numbers(slices_of, most)
        assert len(numbers) <= most
        assert len({b - a for a, b in itertools.pairwise(numbers)}) == 1
        assert abs(numbers[0] - (slices_of - 1 - numbers[-1])) <= 1


def test_without_regions_the_middle_is_shown(tmp_path: Path) -> None:
    nothing = np.zeros((9, 10, 11), np.uint8)
    shown = slices(nothing, nothing, tmp_path)
    assert (shown.largest(), shown.most_different(), shown.middle()) == (
        None,
        [None] * 3,
        (4, 5, 5),
    )


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "ASR", "PIR", "SLA"])
@pytest.mark.parametrize("spacing", [None, (2.0, 1.0, 3.0)])
def test_slice_number_in_the_file(
    orientation: str, spacing: tuple[float, float, float] | None, tmp_path: Path
) -> None:
    """The file's voxel, moved by its affine, lies in the slice."""
    plan = CasePlan("A", "P", "test", orientation=orientation)
    write_volume(tmp_path / "a.nii.gz", boxes(SHAPE, {1: HEAD}), plan)
    grid = plan_grid(geometry_of(open_volume(tmp_path / "a.nii.gz")), spacing)
    grid = grid.crop_to((2, 4, 6), (20, 20, 20))
    for plane in PLANES:
        for number in range(grid.shape[plane.axis]):
            axis, index = file_slice(grid, plane.axis, number)
            voxel = np.ones(4)
            voxel["ijk".index(axis)] = index
            there = (np.array(grid.original_affine) @ voxel)[plane.axis]
            prepared = np.ones(4)
            prepared[plane.axis] = number
            here = (grid.affine @ prepared)[plane.axis]
            assert abs(there - here) <= 0.5 + 1e-6


# --- From the files to the page


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """Pages of cases that are the same head in several orders of axes, and of spacings."""
    orders = {"M1": "RAS", "M2": "LPS", "M3": "ASR", "M4": "PIR", "M5": "SLA"}
    plans = [plan for plan in case_cohort() if plan.split != "test"]
    plans += [
        CasePlan(
            case,
            case,
            "test",
            {3: TRUTH},
            {3: PREDICTED},
            order,
            (1.0, 1.5, 2.0),
            bright=TRUTH,
        )
        for case, order in orders.items()
    ]
    run = build_case_run(tmp_path_factory.mktemp("painted") / "demo", plans)
    write_cases(run, run / "report")
    return {case: Page(run / f"report/cases/{case}.html") for case in orders}


def drawings(page: Page) -> list[ET.Element]:
    """Return the slices of a page, in its order."""
    matches = re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>', page.html, re.S)
    return [ET.fromstring(svg) for svg in matches]


def expected(box: Box, plane: int) -> np.ndarray:
    """Return where a box of voxels must lie in a picture of the head: (rows, columns) bool.

    Written out for each plane, and not by the code's own way of turning arrays.
    """
    (x, x1), (y, y1), (z, z1) = (
        (low - start, high - start) for (low, high), (start, _) in zip(box, HEAD, strict=True)
    )
    width, depth, height = (stop - start for start, stop in HEAD)
    if plane == 0:  # axial: the right at the left, the front on top
        mask = np.zeros((depth, width), bool)
        mask[depth - y1 : depth - y, width - x1 : width - x] = True
    elif plane == 1:  # coronal: the right at the left, the top on top
        mask = np.zeros((height, width), bool)
        mask[height - z1 : height - z, width - x1 : width - x] = True
    else:  # sagittal: the front at the left, the top on top
        mask = np.zeros((height, depth), bool)
        mask[height - z1 : height - z, depth - y1 : depth - y] = True
    return mask


@pytest.mark.parametrize("case", ["M1", "M2", "M3", "M4", "M5"])
@pytest.mark.parametrize("plane", [0, 1, 2])
def test_outlines_are_where_the_labels_are(painted: dict[str, Page], case: str, plane: int) -> None:
    drawing = drawings(painted[case])[plane]
    regions = drawing.findall("g")
    assert len(regions) == 3
    for region in regions:
        for kind, box in (("reference", TRUTH), ("predicted", PREDICTED)):
            (path,) = [p for p in region.findall("path") if p.get("class") == kind]
            wanted = expected(box, plane)
            assert np.array_equal(filled(path.get("d") or "", *wanted.shape), wanted), kind


@pytest.mark.parametrize("case", ["M1", "M2", "M3", "M4", "M5"])
@pytest.mark.parametrize("plane", [0, 1, 2])
def test_images_are_aligned_with_outlines(painted: dict[str, Page], case: str, plane: int) -> None:
    drawing = drawings(painted[case])[plane]
    flair, other = drawing.findall("image")
    pixels = [
        np.asarray(
            Image.open(io.BytesIO(base64.b64decode((image.get("href") or "").split(",")[1])))
        )
        for image in (flair, other)
    ]
    wanted = expected(TRUTH, plane)
    assert pixels[0].shape == wanted.shape
    assert np.array_equal(pixels[0] == 255, wanted)
    assert not np.array_equal(pixels[1] == 255, wanted)
    # Over the same place, in millimetres: a region's path is in pixels and scaled.
    columns, rows = wanted.shape[1], wanted.shape[0]
    scale = re.fullmatch(r"scale\((\S+) (\S+)\)", drawing.findall("g")[0].get("transform") or "")
    assert scale
    assert float(flair.get("width") or 0) == pytest.approx(columns * float(scale[1]))
    assert float(flair.get("height") or 0) == pytest.approx(rows * float(scale[2]))
    assert (flair.get("x"), flair.get("y")) == ("0", "0")
    spacing = (1.0, 1.5, 2.0)
    across, up = ((0, 1), (0, 2), (1, 2))[plane]
    assert (float(scale[1]), float(scale[2])) == pytest.approx((spacing[across], spacing[up]))


def test_letters_and_scale_bar_are_correct(painted: dict[str, Page]) -> None:
    for plane, drawing in zip(PLANES, drawings(painted["M2"])[:3], strict=True):
        *letters, length = drawing.findall("text")
        left, right, top, bottom = letters
        assert tuple(letter.text for letter in letters) == plane.ends
        x = {letter.text: float(letter.get("x") or 0) for letter in letters}
        y = {letter.text: float(letter.get("y") or 0) for letter in letters}
        width, height = (float(drawing.find("image").get(k) or 0) for k in ("width", "height"))  # type: ignore[union-attr]
        assert x[left.text] < 0 and x[right.text] > width
        assert y[top.text] < 0 and y[bottom.text] > height
        (bar,) = [p for p in drawing.findall("path") if p.get("class") == "bar-line"]
        drawn = re.search(r"h([\d.]+)", bar.get("d") or "")
        assert drawn and length.text == f"{float(drawn[1]):g} mm"
        assert float(drawn[1]) <= width / 4


def test_planes_of_a_row_have_one_scale(painted: dict[str, Page]) -> None:
    views = re.findall(
        r'class="view" style="flex-grow: ([\d.]+)">\s*<svg viewBox="([^"]*)"', painted["M1"].html
    )
    assert len(views) > 3
    for grow, box in views:
        assert float(grow) == pytest.approx(float(box.split()[2]), rel=1e-3)


def test_rotated_grid_is_stated() -> None:
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(0.2), -np.sin(0.2)], [np.sin(0.2), np.cos(0.2)]]
    from gigatile.report.cases.page import _oblique

    def grid(affine: np.ndarray) -> Grid:
        rows = tuple(tuple(row) for row in affine.tolist())
        shape, sides = (4, 4, 4), (1.0, 1.0, 1.0)
        return Grid(shape, rows, "RAS", {}, sides, sides, shape, (0, 0, 0), shape)

    assert _oblique(grid(turn)) == pytest.approx(np.degrees(0.2), abs=1e-3)
    assert _oblique(grid(np.diag([-1.0, -1.0, 1.0, 1.0]))) is None
