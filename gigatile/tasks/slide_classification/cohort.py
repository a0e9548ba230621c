"""The sample sheet of slides, the table of their states, and the folder of their records."""

from collections.abc import Mapping

from gigatile.cohort.state_tables import SLIDE_TABLE, State, StateTable
from gigatile.json_models import JsonModel
from gigatile.tasks.tile_classification.cohort import RECORDS, sheet

__all__ = ["RECORDS", "STATE_TABLE", "sheet"]


class _Tiles(JsonModel):
    kept: int


class _Grid(JsonModel):
    columns: int
    rows: int
    extent: float
    mpp: float | None


class _State(State):
    tiles: _Tiles
    grid: _Grid | None


def _cells(state: _State) -> Mapping[str, object]:
    cells: dict[str, object] = {"tiles": state.tiles.kept}
    if state.grid is not None:
        cells |= state.grid.model_dump()
        cells |= {"mpp": "" if state.grid.mpp is None else state.grid.mpp}
    return cells


# Also the tile grid, which says where the tiles of a slide are, and where its border is.
STATE_TABLE = StateTable(
    columns=(*SLIDE_TABLE.columns, "columns", "rows", "extent", "mpp"), model=_State, cells=_cells
)
