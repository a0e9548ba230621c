"""Maps of slides: their pictures, and their comparison with tiles of any size."""

import numpy as np
import pandas as pd
import pytest

from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json
from gigatile.report.slides.inputs import TileScores
from gigatile.report.whole_slides import maps
from gigatile.report.whole_slides.comparison import agreement, matched
from gigatile.slides.state import TileGrid

CLASSES, SIDE = ["a", "b"], 32.0


def write_map(folder, cells, first=(15.0, 15.0)) -> None:
    """Write a map with a position for each (column, row); p_b is its column / 100."""
    columns, rows = np.array(cells, float).T
    table = pd.DataFrame({"x": first[0] + SIDE * columns, "y": first[1] + SIDE * rows})
    table["side"], table["p_b"] = SIDE, (columns / 100).astype("f4")
    table["p_a"] = 1 - table["p_b"]
    table.to_parquet(folder / "S.parquet")
    state = {"slide": "S", "scores": {"a": 1, "b": 0}, "positions": len(table)}
    write_json(folder / "S.json", state | {"sha256": sha256_of(folder / "S.parquet")})


def grid(size: float, columns: int, rows: int) -> TileGrid:
    return TileGrid(
        size=64, mpp=0.5, extent=size, level=0, scale=(1, 1), resampled=True,
        columns=columns, rows=rows,
    )  # fmt: skip


@pytest.mark.parametrize("extent", [32.0, 64.0, 100.5, 320.0])
def test_tiles_of_any_size_are_matched_with_the_positions_in_them(tmp_path, extent):
    cells = [(column, row) for column in range(10) for row in range(4)]
    write_map(tmp_path, cells)
    positions = maps.read_map(tmp_path / "S.parquet", "S", CLASSES)
    tiles = grid(extent, int(400 // extent), max(1, int(200 // extent)))
    corners = np.array([(c, r) for r in range(tiles.rows) for c in range(tiles.columns)])
    x, y = np.rint(corners * extent).astype(int).T
    scores = np.stack([1 - x / 1000, x / 1000], axis=1)
    ours, others = matched(positions, TileScores(x, y, scores), tiles, CLASSES, "S")
    expected = []
    for left, top in corners * extent:
        inside = [
            column / 100
            for column, row in cells
            if left <= 31 + SIDE * column < left + extent and top <= 31 + SIDE * row < top + extent
        ]
        if inside:
            expected.append((np.mean(inside), np.rint(left) / 1000))
    np.testing.assert_allclose(np.stack([ours[:, 1], others[:, 1]], axis=1), expected, rtol=1e-5)
    if len(set(others[:, 1])) > 1:
        assert agreement([(ours, others)], 1).rank == pytest.approx(1)
    assert agreement([(ours, others)], 0).by_tiles is None, "all tiles are predicted as a"


def test_no_tile_in_common_has_no_agreement():
    result = agreement([(np.empty((0, 2)), np.empty((0, 2)))], 1)
    assert (result.tiles, result.rank, result.by_map) == (0, None, None)


def test_large_maps_are_averaged_into_a_smaller_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "LONGEST", 4)
    write_map(tmp_path, [(column, 0) for column in range(9)])
    positions = maps.read_map(tmp_path / "S.parquet", "S", CLASSES)
    # Three columns for each pixel; the picture ends where its last pixel does.
    box = positions.picture_box()
    assert (box.x, box.y, box.width, box.height) == (15, 15, 9 * SIDE, 3 * SIDE)


@pytest.mark.parametrize("change", ["other", "value", "cut"])
def test_map_that_does_not_fit_its_state_is_refused(tmp_path, change):
    write_map(tmp_path, [(0, 0), (1, 0)])
    path = tmp_path / "S.parquet"
    if change == "value":
        table = pd.read_parquet(path)
        table.loc[0, "p_b"] = 1.5
        table.to_parquet(path)
        state = {"slide": "S", "scores": {}, "positions": 2, "sha256": sha256_of(path)}
        write_json(tmp_path / "S.json", state)
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"S\.parquet"):
        maps.read_map(path, "T" if change == "other" else "S", CLASSES)
