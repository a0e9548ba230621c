"""Which settings a bundle decides."""

from collections.abc import Mapping
from typing import Any

# Keys that only say how a job runs. `EXECUTION` of the sections has more keys: those that one
# stage does not depend on, but another one does.
MACHINE = frozenset(
    {
        *("cores", "stall_minutes", "copy_first", "on_error", "jobs", "window", "nodes"),
        "file",  # of the encoder
    }
)
# `window` says how a whole slide is processed, but changes the instances that are found.
ALSO = {"slide_instances": frozenset({"window"})}


def decisive(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a section that predictions depend on."""
    excluded = MACHINE - ALSO.get(section, frozenset())
    return {key: value for key, value in values.items() if key not in excluded}
