"""Heat maps over tiled slides: a painted square covers its tile."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "slides"))
from known_slides import STAIN, tissue, write_svs

from gigatile.demo.svs import shrink
from gigatile.json_models import read_model
from gigatile.records import decode_tile, read_records
from gigatile.report.slides import heatmap
from gigatile.report.slides.inputs import TileScores
from gigatile.settings.tiles import TileSettings
from gigatile.slides.state import SlideState
from gigatile.slides.tiling import TilingFiles, tile_slide

SIZE = 32


# Level 1 has downsamples of 2.0005, 2.0026 or 4.003; in the last case it is resampled.
@pytest.mark.parametrize(
    ("height", "width", "down", "mpp", "resampled"),
    [
        (1201, 4001, 2, 1.0, False),
        (1201, 783, 2, 1.0, False),
        (1203, 4003, 4, 2.0, False),
        (1203, 4003, 4, 2.2, True),
    ],
)
@pytest.mark.parametrize("far", [0.1, 0.97])
def test_marked_square_is_painted_to_the_pixel(tmp_path, height, width, down, mpp, resampled, far):
    """The mark covers one tile's square of level 0; its tile must be all mark, and be painted."""
    pixels = tissue(height, width)
    path = write_svs(tmp_path / "plain.svs", pixels, shrink(pixels, down), mpp=0.5)
    grid = cut(path, tmp_path, mpp)[0].grid
    assert grid.resampled == resampled
    assert (max(grid.scale) != round(max(grid.scale))) or resampled
    column, row = int(far * (grid.columns - 1)), int(far * (grid.rows - 1))
    left, top = round(column * grid.extent), round(row * grid.extent)
    side = round(grid.extent)
    pixels[:] = STAIN
    pixels[top : top + side, left : left + side] = (40, 20, 120)
    path = write_svs(tmp_path / "marked.svs", pixels, shrink(pixels, down), mpp=0.5)
    state, tiles = cut(path, tmp_path, mpp)

    blue = [tile.pixels()[..., 0] < (STAIN[0] + 40) / 2 for tile in tiles]
    scores = np.array([[tile.mean()] for tile in blue])
    slide_tiles = TileScores(
        np.array([tile.x for tile in tiles]), np.array([tile.y for tile in tiles]), scores
    )
    best = int(scores[:, 0].argmax())
    columns, rows = heatmap.cells(slide_tiles, state.grid, "S1")
    assert (columns[best], rows[best]) == (column, row)
    # The tile shows the mark, to within a line of its pixels on each side; its corner is that of
    # the mark, to within half a pixel of the level.
    assert scores[best, 0] >= (SIZE - 1) ** 2 / SIZE**2
    assert np.sort(scores[:, 0])[-2] <= 1 / SIZE
    step = max(grid.scale) / 2 + 0.5
    assert max(abs(slide_tiles.x[best] - left), abs(slide_tiles.y[best] - top)) <= step
    box = heatmap.placement(state.grid)
    across, high = box.width / state.grid.columns, box.height / state.grid.rows
    assert abs(columns[best] * across - left) <= 0.5
    assert abs(rows[best] * high - top) <= 0.5
    assert across == high == grid.extent


def cut(path: Path, folder: Path, mpp: float):
    kinds = ("tfrecord", "json", "jpg", "parquet")
    files = TilingFiles(*(folder / f"S1.{kind}" for kind in kinds))
    tile_slide(path, "S1", None, TileSettings(size=SIZE, mpp=mpp, quality=100), files)
    tiles = [decode_tile(data) for data in read_records(files.records)]
    return read_model(SlideState, files.state), tiles
