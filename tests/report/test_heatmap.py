"""Heat maps on the pages are aligned with the pixels of level 0."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image
from slide_runs import Plan, build_run, cohort
from test_self_contained import Page
from written import write_slides

from gigatile.errors import UserError
from gigatile.report.pages import scale_bar
from gigatile.report.slides import heatmap
from gigatile.report.slides.inputs import TileScores
from gigatile.slides.state import TileGrid

EXTENT = 31.7
MARKED = {(41, 23): (0.0, 1.0, 0.0), (3, 17): (1.0, 0.0, 0.0)}


def grid_of(
    extent: float, columns: int = 5, rows: int = 4, scale: tuple[float, float] = (1, 1)
) -> TileGrid:
    return TileGrid(
        size=32,
        mpp=0.5,
        extent=extent,
        level=0,
        scale=scale,
        resampled=scale == (1, 1),
        columns=columns,
        rows=rows,
    )


def tiles_at(x: list[int], y: list[int]) -> TileScores:
    return TileScores(np.array(x), np.array(y), np.zeros((len(x), 2)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A slide with tiles of a fractional number of pixels, two of them marked."""
    plans = [plan for plan in cohort() if plan.slide != "S03"]
    plans.append(
        Plan("S03", "P03", "adeno", "test", EXTENT, columns=45, rows=35, scores=dict(MARKED))
    )
    run = build_run(tmp_path_factory.mktemp("marked") / "demo", plans)
    write_slides(run, run / "report")
    return Page(run / "report/slides/S03.html")


def pixels_of(image: dict[str, str]) -> np.ndarray:
    data = base64.b64decode(image["href"].partition("base64,")[2])
    return np.asarray(Image.open(io.BytesIO(data)))


def layers(page: Page) -> list[dict[str, str]]:
    return [a for a in page.all("image") if re.fullmatch(r"layer layer-\d+", a["class"])]


def test_overview_covers_the_slide(page: Page) -> None:
    (svg,) = page.all("svg")
    (overview,) = (a for a in page.all("image") if a["class"] == "overview")
    width, height = int(45 * EXTENT) + 9, int(35 * EXTENT) + 17
    assert svg["viewbox"] == f"0 0 {width} {height}"
    assert [overview[name] for name in ("x", "y", "width", "height")] == [
        "0",
        "0",
        str(width),
        str(height),
    ]
    assert overview["preserveaspectratio"] == "none"


@pytest.mark.parametrize(("corner", "which"), [((41, 23), 1), ((3, 17), 0)])
def test_tile_is_painted_over_its_pixels(page: Page, corner: tuple[int, int], which: int) -> None:
    image = layers(page)[which]
    painted = pixels_of(image)
    rows, columns = np.nonzero((painted == heatmap.COLOURS[255]).all(axis=2))
    assert (columns.tolist(), rows.tolist()) == ([corner[0]], [corner[1]])
    assert image["preserveaspectratio"] == "none"
    across = float(image["width"]) / painted.shape[1]
    down = float(image["height"]) / painted.shape[0]
    left = float(image["x"]) + columns[0] * across
    top = float(image["y"]) + rows[0] * down
    # The tile's corner is rounded to a pixel; the painted square is not.
    assert abs(left - round(corner[0] * EXTENT)) <= 0.5
    assert abs(top - round(corner[1] * EXTENT)) <= 0.5
    assert across == pytest.approx(EXTENT, abs=1e-6)
    assert down == pytest.approx(EXTENT, abs=1e-6)


def test_highest_tile_is_framed_at_its_pixels(page: Page) -> None:
    frames = re.findall(
        r'<g id="tile-1-1">.*?<rect class="mark" x="(\d+)" y="(\d+)" width="([\d.]+)"',
        page.html,
        re.DOTALL,
    )
    assert frames == [(str(round(41 * EXTENT)), str(round(23 * EXTENT)), "31.7")]


def test_image_of_the_highest_tile_is_from_its_pixels(page: Page) -> None:
    first = next(a for a in page.all("img") if a["alt"].startswith("Tile 1, normal 1.00"))
    data = base64.b64decode(first["src"].partition("base64,")[2])
    shown = np.asarray(Image.open(io.BytesIO(data)), float).mean(axis=(0, 1))
    assert shown == pytest.approx((235, 190, 200), abs=6)  # the colour of class 1 in the fixture


def test_only_dropped_tiles_are_transparent(page: Page) -> None:
    for image in layers(page):
        opaque = pixels_of(image)[:, :, 3]
        assert opaque.shape == (35, 45)
        assert set(np.unique(opaque)) == {0, 255}
        assert opaque[0, 0] == 0 and opaque[17, 22] == 255
    kept = re.search(r"Kept (\d[\d,]*) of 1,575", page.text)
    assert kept and int(kept[1].replace(",", "")) == int((opaque > 0).sum())


def test_each_class_has_a_layer_and_one_is_shown(page: Page) -> None:
    assert len(layers(page)) == 3
    chosen = [a["id"] for a in page.all("input") if "checked" in a]
    assert len(chosen) == 1 and chosen[0] in {"class-0", "class-1", "class-2"}


def test_colours_run_from_0_to_1() -> None:
    bar = np.asarray(Image.open(io.BytesIO(heatmap.colour_bar())))
    light = bar[0, :, :3] @ (0.2126, 0.7152, 0.0722)
    assert bar.shape == (1, 256, 4)
    assert (np.diff(light) > -1).all() and light[-1] - light[0] > 150
    painted = heatmap.paint(np.array([0.0, 1.0]), np.array([0, 4]), np.array([0, 3]), grid_of(9))
    corners = np.asarray(Image.open(io.BytesIO(painted)))
    assert (corners[0, 0] == bar[0, 0]).all() and (corners[3, 4] == bar[0, 255]).all()


@pytest.mark.parametrize("extent", [16.0, 223.37, 300.5])
def test_cells_undo_the_rounding_of_corners(extent: float) -> None:
    columns, rows = np.meshgrid(np.arange(500), np.arange(300))
    x = np.rint(columns.ravel() * extent).astype(np.int64)
    y = np.rint(rows.ravel() * extent).astype(np.int64)
    tiles = TileScores(x, y, np.zeros((len(x), 1)))
    cells = heatmap.cells(tiles, grid_of(extent, 500, 300), "S1")
    assert (cells[0] == columns.ravel()).all() and (cells[1] == rows.ravel()).all()


def test_cells_of_a_level_without_resampling() -> None:
    """A corner is on a pixel of the level, up to half a pixel away from the grid."""
    scale = (16.3, 16.02)
    columns, rows = np.meshgrid(np.arange(50), np.arange(30))
    places = [columns.ravel() * 1042.7, rows.ravel() * 1042.7]
    x, y = (np.rint(np.rint(p / s) * s).astype(int) for p, s in zip(places, scale, strict=True))
    assert np.abs(x - places[0]).max() > 5
    tiles = TileScores(x, y, np.zeros((len(x), 1)))
    column, row = heatmap.cells(tiles, grid_of(1042.7, 50, 30, scale), "S1")
    assert (column == columns.ravel()).all() and (row == rows.ravel()).all()
    with pytest.raises(UserError, match="is not on the slide's grid"):
        heatmap.cells(tiles_at([9], [0]), grid_of(1042.7, 50, 30, scale), "S1")


@pytest.mark.parametrize(
    ("x", "y"), [([0, 33], [0, 0]), ([160], [0]), ([0], [128]), ([-32], [0]), ([0, 0], [32, 32])]
)
def test_tiles_of_another_grid_are_refused(x: list[int], y: list[int]) -> None:
    with pytest.raises(UserError, match="slide 'S1'"):
        heatmap.cells(tiles_at(x, y), grid_of(32.0), "tiles.parquet: slide 'S1'")


@pytest.mark.parametrize(
    ("width", "mpp", "text"),
    [
        (40_000, 0.25, "2 mm"),
        (40_000, 0.5, "5 mm"),
        (28_000, 0.25, "1 mm"),
        (2_000, 0.5, "200 µm"),
        (8, 0.5, "1 µm"),
    ],
)
def test_scale_bar_has_a_round_length(width: int, mpp: float, text: str) -> None:
    bar = scale_bar(width, mpp)
    length = float(text.split()[0]) * (1000 if text.endswith("mm") else 1)
    assert bar.text == text
    assert bar.share * width * mpp == pytest.approx(length)
    assert bar.share <= 0.25 + 1e-9
