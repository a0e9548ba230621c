import numpy as np
import openslide
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from known_slides import GLASS, glass, make_grid, write_svs

from gigatile.demo.svs import shrink
from gigatile.settings.tiles import TileSettings
from gigatile.slides.grid import Grid, plan_grid
from gigatile.slides.reader import Slide, SlideError, open_slide


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """A slide of noise, 1,104 × 800 px at 0.5 µm, with levels 2 and 8 times smaller."""
    pixels = np.random.default_rng(1).integers(0, 256, (800, 1104, 3), np.uint8)
    path = tmp_path_factory.mktemp("noise") / "noise.svs"
    return write_svs(path, pixels, shrink(pixels, 2), shrink(pixels, 8))


def plan(path, mpp=0.5, /, **settings) -> Grid:
    with open_slide(path) as slide:
        return plan_grid(slide, mpp, TileSettings(**settings))


def read_tile(slide: Slide, grid: Grid, x: int, y: int) -> np.ndarray:
    """Return the tile at a corner as OpenSlide reads it: (size, size, 3) uint8."""
    boxes, spans = grid.boxes(np.array([[x, y]]))
    left, top, width, height = boxes[0].tolist()
    return grid.resize_to_tile(
        np.asarray(slide.region(left, top, grid.level, width, height)), spans[0]
    )


# --- Level and extent


@pytest.mark.parametrize(
    ("mpp", "wanted", "extent", "level", "resampled", "columns", "rows"),
    [
        (0.5, None, 64.0, 0, False, 17, 12),  # the scale of level 0
        (None, None, 64.0, 0, False, 17, 12),  # unknown and not required
        (0.5, 0.5, 64.0, 0, False, 17, 12),
        (0.5, 1.0, 128.0, 1, False, 8, 6),  # level 1 has this scale
        (0.5, 4.0, 512.0, 2, False, 2, 1),
        (0.5, 0.75, 96.0, 0, True, 11, 8),  # no level has it: the next finer level
        (0.5, 3.0, 384.0, 1, True, 2, 2),
        (
            0.499,
            0.5,
            64 * 0.5 / 0.499,
            0,
            False,
            17,
            12,
        ),  # the scale of level 0, to within half a pixel per tile
        (0.25, 0.5, 128.0, 1, False, 8, 6),  # the mpp decides, not the level's number
        (0.54, 0.5, 64 * 0.5 / 0.54, 0, True, 18, 13),  # slightly enlarged
    ],
)
def test_mpp_determines_level_and_extent(
    noise, mpp, wanted, extent, level, resampled, columns, rows
):
    grid = plan(noise, mpp, size=64, mpp=wanted)
    scale = (1, 2, 8)[level]
    assert grid == make_grid(
        *(64, pytest.approx(extent), columns, rows),
        mpp=mpp if wanted is None else wanted,
        level=level,
        scale=(scale, scale),
        resampled=resampled,
    )


def test_too_coarse_slide_is_refused(noise):
    assert plan(noise, 0.55, size=64, mpp=0.5).resampled
    with pytest.raises(
        SlideError, match=r"level 0 has 0\.56 µm per pixel, too coarse for tiles\.mpp = 0\.5"
    ):
        plan(noise, 0.56, size=64, mpp=0.5)


def test_tile_may_fill_but_not_exceed_the_slide(tmp_path):
    path = write_svs(tmp_path / "s.svs", glass(100, 80))
    assert plan(path, size=80) == make_grid(80, 80.0, 1, 1, mpp=0.5)
    with pytest.raises(
        SlideError, match=r"smaller than one tile: 80×100 px, but a tile spans 81 px"
    ):
        plan(path, size=81)
    with pytest.raises(SlideError, match="spans 160 px"):
        plan(path, mpp=1.0, size=80)


# --- Positions of the tiles


@given(
    extent=st.floats(16, 5000),
    columns=st.integers(1, 3000),
    rows=st.integers(1, 4),
)
def test_corner_errors_do_not_accumulate(extent, columns, rows):
    corners = make_grid(64, extent, columns, rows).corners()
    row, column = np.divmod(np.arange(columns * rows), columns)
    assert corners.dtype == np.int64
    assert np.abs(corners - np.stack([column, row], axis=1) * extent).max() <= 0.5


def test_corners_follow_the_rounding_rule():
    grid = make_grid(64, 100.3, 30, 7, resampled=True)
    expected = [(round(c * 100.3), round(r * 100.3)) for r in range(7) for c in range(30)]
    assert grid.corners().tolist() == [list(corner) for corner in expected]


@given(
    extent=st.floats(100, 5000),
    across=st.floats(1, 33),
    down=st.floats(1, 33),
    columns=st.integers(1, 2000),
)
def test_corners_are_on_pixels_without_resampling(extent, across, down, columns):
    """Corners are on pixels of the level to within half a pixel of level 0."""
    corners = make_grid(64, extent, columns, 3, level=1, scale=(across, down)).corners()
    on_level = corners / (across, down)
    assert (np.abs(np.rint(on_level) * (across, down) - corners) <= 0.5 + 1e-6).all()
    row, column = np.divmod(np.arange(3 * columns), columns)
    distance = np.abs(corners - np.stack([column, row], axis=1) * extent)
    assert (distance <= np.array([across, down]) / 2 + 0.5 + 1e-6).all()


# --- Pixels


@pytest.mark.parametrize(("height", "width", "down"), [(2055, 4099, 4), (2011, 4003, 2)])
def test_fractional_downsample_keeps_the_levels_pixels(tmp_path, height, width, down):
    """At downsamples such as 4.0044 and 2.0007, OpenSlide blends neighbouring pixels."""
    pixels = np.random.default_rng(2).integers(0, 256, (height, width, 3), np.uint8)
    level = shrink(pixels, down)
    path = write_svs(tmp_path / "s.svs", pixels, level)
    grid = plan(path, size=64, mpp=0.5 * down)
    assert (grid.level, grid.resampled) == (1, False)
    with open_slide(path) as slide:
        assert slide.downsamples[1] != down
        for x, y in grid.corners().tolist():
            left, top = round(x / slide.scales[1][0]), round(y / slide.scales[1][1])
            if left + 64 <= level.shape[1] and top + 64 <= level.shape[0]:
                expected = level[top : top + 64, left : left + 64]
                assert np.array_equal(read_tile(slide, grid, x, y), expected)


@pytest.mark.parametrize(
    ("wanted", "level", "down"), [(None, 0, 1), (0.5, 0, 1), (1.0, 1, 2), (4.0, 2, 8)]
)
def test_tiles_at_a_levels_scale_have_its_pixels(noise, wanted, level, down):
    grid = plan(noise, size=64, mpp=wanted)
    handle = openslide.OpenSlide(noise)
    written = tifffile.imread(noise, key=level)
    with open_slide(noise) as slide:
        for x, y in grid.corners().tolist():
            tile = read_tile(slide, grid, x, y)
            expected = handle.read_region((x, y), level, (64, 64)).convert("RGB")
            assert np.array_equal(tile, np.asarray(expected))
            left, top = x // down, y // down
            assert np.array_equal(tile, written[top : top + 64, left : left + 64])


MARK = 41


def marked(height: int, width: int, marks: list[tuple[int, int]]) -> np.ndarray:
    """Return glass with a black square at each (x, y)."""
    pixels = glass(height, width)
    for x, y in marks:
        pixels[y : y + MARK, x : x + MARK] = 0
    return pixels


def deviations(path, marks: list[tuple[int, int]], grid: Grid) -> list[float]:
    """Return the distance of each mark in a tile from its expected position, in tile pixels."""
    distances = []
    scale = grid.size / grid.extent
    margin = 12  # px of level 0 around a mark without another mark
    with open_slide(path) as slide:
        for corner in grid.corners():
            positions = np.array(marks) - corner
            inside = ((positions >= margin) & (positions + MARK + margin <= grid.extent)).all(
                axis=1
            )
            if inside.any():
                black = 1 - read_tile(slide, grid, *corner.tolist())[..., 0] / GLASS[0]
                assert black.shape == (grid.size, grid.size)
            for position in positions[inside]:
                left, top = np.floor((position - margin) * scale).astype(int)
                right, bottom = np.ceil((position + MARK + margin) * scale).astype(int)
                weight = black[top:bottom, left:right].clip(0)
                y, x = np.indices(weight.shape) + 0.5
                mass = weight.sum() + 1e-9
                centre = (left + (weight * x).sum() / mass, top + (weight * y).sum() / mass)
                distances.append(np.abs(centre - (position + MARK / 2) * scale).max())
    return distances


# The levels have fractional downsamples, such as 2.0009 and 3.0022.
@pytest.mark.parametrize("factors", [(), (2,), (3,), (2, 3)])
@pytest.mark.parametrize("wanted", [0.5, 0.7, 1.0, 1.003, 1.6, 2.2])
def test_mark_is_at_its_position(tmp_path, factors, wanted):
    marks = [(x, y) for x in range(37, 2000, 110) for y in range(51, 1200, 110)]
    pixels = marked(1303, 2049, marks)
    path = write_svs(tmp_path / "s.svs", pixels, *(shrink(pixels, f) for f in factors))
    distances = deviations(path, marks, plan(path, size=100, mpp=wanted))
    assert len(distances) >= 5
    # A level omits partial pixels at its edges, and the file does not record how much.
    assert max(distances) < (1 if factors else 0.1)


# At 4.0, level 1 is used unchanged; at the others, it is resampled.
@pytest.mark.parametrize("wanted", [4.0, 4.03, 4.3, 7.7])
def test_positions_do_not_drift_on_a_long_slide(tmp_path, wanted):
    """Level 1 is 34 px high, not 34.9, so OpenSlide's average downsample is 8.1."""
    marks = [(x, 45) for x in range(101, 16_300, 157)]
    pixels = marked(279, 16_384, marks)
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 8), tile=256)
    grid = plan(path, size=16, mpp=wanted)
    assert grid.level == 1
    distances = deviations(path, marks, grid)
    assert len(distances) >= 5
    assert max(distances) < 1
