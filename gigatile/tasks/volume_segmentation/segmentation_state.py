"""What is written beside a segmentation: what was found, or that there was nothing to segment."""

from pathlib import Path
from typing import Any

from gigatile.files import write_json, write_whole

SCHEMA = 1


def describe(path: Path, case: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Write what was found in a case; return it as written."""
    state = {"schema": SCHEMA, "case": case, "state": "segmented"} | fields
    write_json(path, state)
    return state


def skip_case(case: str, segmentation: Path, path: Path) -> None:
    """Write for a case that could not be prepared an empty segmentation, and that it is none."""
    with write_whole(segmentation):
        pass
    write_json(path, {"schema": SCHEMA, "case": case, "state": "failed"})
