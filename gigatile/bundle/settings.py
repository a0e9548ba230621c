"""The settings in a bundle."""

import json
from typing import Any

from gigatile.settings.whole import Settings
from gigatile.tasks import find_task

# Keys that only say how a job runs. `EXECUTION` of the sections has more keys: those that one
# stage does not depend on, but another one does.
MACHINE = frozenset(
    {"cores", "stall_minutes", "copy_first", "reuse", "on_error", "jobs", "window", "nodes"}
)
# `window` says how a whole slide is processed, but changes the instances that are found.
ALSO = {"slide_instances": frozenset({"window"})}


def settings_of_bundle(settings: Settings) -> str:
    """Return the sections that prediction depends on, as JSON."""
    sections: dict[str, dict[str, Any]] = {}
    for name in find_task(settings.task).sections:
        section = getattr(settings, name)
        excluded = MACHINE - ALSO.get(name, frozenset())
        sections[name] = section.model_dump(mode="json", exclude=set(excluded))
    return json.dumps(sections, sort_keys=True, separators=(",", ":"))
