import numpy as np
import openslide
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from known_slides import GLASS, glass, grid_of, write_svs

from gigatile.demo.svs import shrink
from gigatile.settings.tiles import TileSettings
from gigatile.slides.grid import Grid, plan_grid
from gigatile.slides.reader import Slide, SlideError, open_slide


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """A slide of 1,104 × 800 px at 0.5 µm, of random colours, and levels 2 and 8 times smaller."""
    pixels = np.random.default_rng(1).integers(0, 256, (800, 1104, 3), np.uint8)
    path = tmp_path_factory.mktemp("noise") / "noise.svs"
    return write_svs(path, pixels, shrink(pixels, 2), shrink(pixels, 8))


def plan(path, own=0.5, /, **settings) -> Grid:
    with open_slide(path) as slide:
        return plan_grid(slide, own, TileSettings(**settings))


def read_tile(slide: Slide, grid: Grid, x: int, y: int) -> np.ndarray:
    """Return the tile at a corner as OpenSlide reads it: (size, size, 3) uint8."""
    boxes, spans = grid.boxes(np.array([[x, y]]))
    left, top, width, height = boxes[0].tolist()
    return grid.resize_to_tile(
        np.asarray(slide.region(left, top, grid.level, width, height)), spans[0]
    )


# --- Which level, and how large


@pytest.mark.parametrize(
    ("mpp", "wanted", "extent", "level", "resampled", "columns", "rows"),
    [
        (0.5, None, 64.0, 0, False, 17, 12),  # the slide's own scale
        (None, None, 64.0, 0, False, 17, 12),  # unknown, and not needed
        (0.5, 0.5, 64.0, 0, False, 17, 12),
        (0.5, 1.0, 128.0, 1, False, 8, 6),  # a level fits
        (0.5, 4.0, 512.0, 2, False, 2, 1),
        (0.5, 0.75, 96.0, 0, True, 11, 8),  # none fits: the next finer one
        (0.5, 3.0, 384.0, 1, True, 2, 2),
        (0.499, 0.5, 64 * 0.5 / 0.499, 0, False, 17, 12),  # fits to within half a pixel
        (0.25, 0.5, 128.0, 1, False, 8, 6),  # micrometres decide, not the number of the level
        (0.54, 0.5, 64 * 0.5 / 0.54, 0, True, 18, 13),  # enlarged a little
    ],
)
def test_mpp_determines_level_and_extent(
    noise, mpp, wanted, extent, level, resampled, columns, rows
):
    grid = plan(noise, mpp, size=64, mpp=wanted)
    own = mpp if wanted is None else wanted
    scale = (1, 2, 8)[level]
    assert grid == grid_of(
        *(64, pytest.approx(extent), columns, rows),
        mpp=own,
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
    assert plan(path, size=80) == grid_of(80, 80.0, 1, 1, mpp=0.5)
    with pytest.raises(
        SlideError, match=r"smaller than one tile: 80×100 px, but a tile spans 81 px"
    ):
        plan(path, size=81)
    with pytest.raises(SlideError, match="spans 160 px"):
        plan(path, mpp=1.0, size=80)


# --- Where the tiles lie


@given(
    extent=st.floats(16, 5000),
    columns=st.integers(1, 3000),
    rows=st.integers(1, 4),
)
def test_corner_errors_do_not_accumulate(extent, columns, rows):
    corners = grid_of(64, extent, columns, rows).corners()
    row, column = np.divmod(np.arange(columns * rows), columns)
    assert corners.dtype == np.int64
    assert np.abs(corners - np.stack([column, row], axis=1) * extent).max() <= 0.5


def test_corners_follow_the_rounding_rule():
    grid = grid_of(64, 100.3, 30, 7, resampled=True)
    expected = [(round(c * 100.3), round(r * 100.3)) for r in range(7) for c in range(30)]
    assert grid.corners().tolist() == [list(corner) for corner in expected]


@given(
    extent=st.floats(100, 5000),
    across=st.floats(1, 33),
    down=st.floats(1, 33),
    columns=st.integers(1, 2000),
)
def test_corners_are_on_pixels_without_resampling(extent, across, down, columns):
    """To within half a pixel of level 0, and of their own place by half a pixel of the level."""
    corners = grid_of(64, extent, columns, 3, level=1, scale=(across, down)).corners()
    on_level = corners / (across, down)
    assert (np.abs(np.rint(on_level) * (across, down) - corners) <= 0.5 + 1e-6).all()
    row, column = np.divmod(np.arange(3 * columns), columns)
    away = np.abs(corners - np.stack([column, row], axis=1) * extent)
    assert (away <= np.array([across, down]) / 2 + 0.5 + 1e-6).all()


# --- The pixels


@pytest.mark.parametrize(("height", "width", "down"), [(2055, 4099, 4), (2011, 4003, 2)])
def test_fractional_downsample_keeps_the_levels_pixels(tmp_path, height, width, down):
    """Its downsamples are 4.0044 and 2.0007, at which OpenSlide by itself blends neighbours."""
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
                own = level[top : top + 64, left : left + 64]
                assert np.array_equal(read_tile(slide, grid, x, y), own)


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
    """Return how far each mark that lies within a tile is from its place, in the tile's pixels."""
    found = []
    scale = grid.size / grid.extent
    margin = 12  # px of level 0 around a mark in which there is no other
    with open_slide(path) as slide:
        for corner in grid.corners():
            places = np.array(marks) - corner
            inside = ((places >= margin) & (places + MARK + margin <= grid.extent)).all(axis=1)
            if inside.any():
                black = 1 - read_tile(slide, grid, *corner.tolist())[..., 0] / GLASS[0]
                assert black.shape == (grid.size, grid.size)
            for place in places[inside]:
                left, top = np.floor((place - margin) * scale).astype(int)
                right, bottom = np.ceil((place + MARK + margin) * scale).astype(int)
                weight = black[top:bottom, left:right].clip(0)
                y, x = np.indices(weight.shape) + 0.5
                mass = weight.sum() + 1e-9
                centre = (left + (weight * x).sum() / mass, top + (weight * y).sum() / mass)
                found.append(np.abs(centre - (place + MARK / 2) * scale).max())
    return found


# The levels have downsamples such as 2.0009 and 3.0022, which are not whole.
@pytest.mark.parametrize("factors", [(), (2,), (3,), (2, 3)])
@pytest.mark.parametrize("wanted", [0.5, 0.7, 1.0, 1.003, 1.6, 2.2])
def test_mark_is_at_its_position(tmp_path, factors, wanted):
    marks = [(x, y) for x in range(37, 2000, 110) for y in range(51, 1200, 110)]
    pixels = marked(1303, 2049, marks)
    path = write_svs(tmp_path / "s.svs", pixels, *(shrink(pixels, f) for f in factors))
    found = deviations(path, marks, plan(path, size=100, mpp=wanted))
    assert len(found) >= 5
    # A level leaves out what fills no whole pixel of it, and its file does not tell how much.
    assert max(found) < (1 if factors else 0.1)


# 4.0 is level 8 as it is; for the others it is resampled.
@pytest.mark.parametrize("wanted", [4.0, 4.03, 4.3, 7.7])
def test_positions_do_not_drift_on_a_long_slide(tmp_path, wanted):
    """Level 8 is 34 px high where 34.9 would be whole, so OpenSlide's one downsample is 8.1."""
    marks = [(x, 45) for x in range(101, 16_300, 157)]
    pixels = marked(279, 16_384, marks)
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 8), tile=256)
    grid = plan(path, size=16, mpp=wanted)
    assert grid.level == 1
    found = deviations(path, marks, grid)
    assert len(found) >= 5
    assert max(found) < 1
