"""The sample sheet of images, the table of their states, and the folder of their records."""

from collections.abc import Mapping

from gigatile.cohort.images import IMAGE_SHEET, Image
from gigatile.cohort.sheet import SheetLayout
from gigatile.cohort.state_tables import State, StateTable

__all__ = ["RECORDS", "STATE_TABLE", "sheet"]

# The folder of the records in the results.
RECORDS = "images"


def sheet() -> SheetLayout[Image]:
    """Return the layout of the sample sheet."""
    return IMAGE_SHEET


class _ImageState(State):
    pixels: int
    instances: dict[str, int]
    fingerprint: str | None


def _cells(state: _ImageState) -> Mapping[str, object]:
    return {
        "megapixels": f"{state.pixels / 1e6:.6f}",
        "instances": sum(state.instances.values()),
        "fingerprint": state.fingerprint or "",
    }


# `part` says in which file of records an image is.
STATE_TABLE = StateTable(
    columns=(
        *("image", "patient", "split", "state", "megapixels", "instances", "part", "reason"),
        *("fingerprint", "sha256"),
    ),
    model=_ImageState,
    cells=_cells,
)
