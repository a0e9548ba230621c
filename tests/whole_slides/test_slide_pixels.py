"""Slides are put together from their stored tiles, in each view."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from random_encoders import build

from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.tfrecord import RecordError
from gigatile.records.tile import decode_jpeg, encode_jpeg
from gigatile.settings.view_names import VIEWS
from gigatile.slides.state import TileGrid
from gigatile.views import apply_view
from gigatile.whole_slides.receptive_field import FieldsBySize
from gigatile.whole_slides.slide_pixels import GLASS, StoredSlide
from gigatile.whole_slides.stored_tiles import open_tiles

SIZE = 24


class DamagedTile(Exception):
    """The error that the slides of this test raise."""


def jpeg(number: int, size: int = SIZE) -> bytes:
    """Return a tile that looks different in each view."""
    pixels = np.random.default_rng(number).integers(0, 255, (4, 4, 3), np.uint8)
    return encode_jpeg(np.kron(pixels, np.ones((size // 4, size // 4, 1), np.uint8)), 90)


def slide_of(cells: np.ndarray, view: int = 0, image=jpeg) -> StoredSlide:
    def damaged(number: int, fault: str) -> DamagedTile:
        return DamagedTile(f"tile {number}: {fault}")

    return StoredSlide(cells, SIZE, image, damaged, view)


def random_cells(rows: int, columns: int, share: float, seed: int) -> np.ndarray:
    """Return numbers of tiles in random order; -1 without a tile."""
    random = np.random.default_rng(seed)
    numbers = random.permutation(rows * columns).reshape(rows, columns)
    cells = np.where(random.random((rows, columns)) < share, numbers, -1)
    cells.flat[random.integers(cells.size)] = 100
    return cells


def whole(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels of a slide, and whether each is of a stored tile."""
    rows, columns = cells.shape
    pixels = np.full((rows * SIZE, columns * SIZE, 3), GLASS, np.uint8)
    stored = np.zeros((rows * SIZE, columns * SIZE, 1), bool)
    for (row, column), number in np.ndenumerate(cells):
        if number >= 0:
            area = np.s_[row * SIZE : (row + 1) * SIZE, column * SIZE : (column + 1) * SIZE]
            pixels[area], stored[area] = decode_jpeg(jpeg(number)), True
    return pixels, stored


# The second one has positions outside the slide, the third one less positions than the slide needs.
ENCODERS = {
    "same": [("conv", (5, 5), 3, "same", 1, 0, 0), ("max", (2, 3), 2, "same", 1, 0, 0)],
    "padded": [("pad", (1, 1), 1, "same", 1, 2, 2), ("conv", (2, 1), 1, "valid", 1, 0, 0)],
    "valid": [("conv", (7, 6), 5, "valid", 1, 0, 0), ("conv", (2, 2), 1, "valid", 2, 0, 0)],
}


@pytest.mark.parametrize("view", range(len(VIEWS)), ids=VIEWS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_windows_have_the_pixels_and_tissue_of_the_whole_slide(encoder, view):
    by_size = FieldsBySize(build(ENCODERS[encoder]))
    for seed, (rows, columns, share) in enumerate(
        [(1, 1, 1), (3, 4, 0.5), (5, 2, 0.2), (4, 5, 0.8)]
    ):
        cells = random_cells(rows, columns, share, seed)
        pixels, stored = (apply_view(image, view) for image in whole(cells))
        slide = slide_of(cells, view)
        assert slide.shape == pixels.shape[:2]
        fields = by_size.get(*slide.shape)
        picture = slide.picture(fields, 40)
        tissue = np.zeros([field.size for field in fields], bool)
        for row, column in np.ndindex(tissue.shape):
            y, x = (
                int(np.floor(index * field.stride + (field.first + field.last + 1) / 2))
                for index, field in zip((row, column), fields, strict=True)
            )
            inside = 0 <= y < len(stored) and 0 <= x < stored.shape[1]
            tissue[row, column] = inside and stored[y, x, 0]
        np.testing.assert_array_equal(picture.tissue, tissue)
        counts = np.zeros(tissue.shape, int)
        for window in picture.windows:
            (top, bottom), (left, right) = window.rows.pixels, window.columns.pixels
            np.testing.assert_array_equal(
                picture.read_pixels(window), pixels[top:bottom, left:right]
            )
            assert picture.tissue_in(window).any()
            counts[slice(*window.rows.outputs), slice(*window.columns.outputs)] += 1
        assert (counts[tissue] == 1).all() and counts.max() == 1
        if (rows, columns) != (1, 1):
            assert len(picture.windows) > 1 and (encoder != "same" or (counts == 0).any())


def test_only_the_tiles_of_a_window_are_decoded():
    """A slide of 50 × 50 cells with two tiles: the rest of the grid has no windows."""
    cells = np.full((50, 50), -1)
    cells[3, 4], cells[40, 7] = 1, 2
    decoded = Counter()

    def image(number: int) -> bytes:
        decoded[number] += 1
        return jpeg(number)

    slide = slide_of(cells, image=image)
    picture = slide.picture(FieldsBySize(build(ENCODERS["same"])).get(*slide.shape), 200)
    assert len(picture.windows) == 2
    assert all(window.area < 50**2 for window in picture.windows)
    for window in picture.windows:
        picture.read_pixels(window)
    assert decoded == {1: 1, 2: 1}


def test_a_tile_of_another_size_or_a_damaged_one_is_reported():
    cells = np.array([[-1, 7]])
    fields = FieldsBySize(build(ENCODERS["same"])).get(SIZE, 2 * SIZE)
    for image, fault in (
        (jpeg(7, 28), "tile 7: its image: 28×28 px, expected 24×24"),
        (jpeg(7)[:-40], "tile 7: its image: "),
        (b"no image", "tile 7: its image: "),
    ):
        picture = slide_of(cells, image=lambda number, image=image: image).picture(fields, 100)
        with pytest.raises(DamagedTile, match=fault):
            picture.read_pixels(picture.windows[0])


# --- The tiles of a slide in a file

GRID = TileGrid(
    size=SIZE, mpp=0.5, extent=36.4, level=0, scale=(1, 1), resampled=True, columns=3, rows=2
)


def records_of(path, corners):
    tiles = [
        Tile(jpeg(number), "S", x, y, GRID.extent, 0.5, 1.0)
        for number, (x, y) in enumerate(corners)
    ]
    write_records(path, map(encode_tile, tiles))
    return path


def test_stored_tiles_are_opened_as_a_slide(tmp_path):
    path = records_of(tmp_path / "S.tfrecord", [(36, 0), (0, 36), (73, 36)])
    with open_tiles(path, GRID) as slide:
        np.testing.assert_array_equal(slide.cells, [[-1, 0, -1], [1, -1, 2]])
        assert [slide.image(number) for number in range(3)] == [jpeg(0), jpeg(1), jpeg(2)]
        assert slide.tile_size == SIZE and slide.shape == (2 * SIZE, 3 * SIZE)
        error = slide.damaged(1, "its image: grey")
    assert f"{path}: the record at byte " in str(error) and "its image: grey" in str(error)


def test_records_that_are_not_tiles_of_the_grid_are_refused(tmp_path):
    good = [(36, 0), (0, 36)]
    faults = {
        "is not on the slide's grid": records_of(tmp_path / "off.tfrecord", [*good, (0, 73)]),
        "another tile is at": records_of(tmp_path / "two.tfrecord", [*good, (37, 0)]),
        "not a tile": tmp_path / "text.tfrecord",
        "no such record file": tmp_path / "missing.tfrecord",
        "the file ends inside it": tmp_path / "cut.tfrecord",
    }
    write_records(tmp_path / "text.tfrecord", [b"text"])
    data = (tmp_path / "off.tfrecord").read_bytes()
    (tmp_path / "cut.tfrecord").write_bytes(data[:-30])
    for fault, path in faults.items():
        with pytest.raises(RecordError, match=fault) as error, open_tiles(path, GRID):
            pass
        assert str(path) in str(error.value)
    negative = replace(Tile(jpeg(0), "S", 0, 0, 36.4, 0.5, 1.0), x=-36)
    write_records(path, [encode_tile(negative)])
    with pytest.raises(RecordError, match="not on the slide's grid"), open_tiles(path, GRID):
        pass
