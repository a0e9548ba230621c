"""The settings in a bundle."""

import json

from gigatile.bundle.sections import decisive
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task


def settings_of_bundle(settings: Settings) -> str:
    """Return the sections that prediction depends on, as JSON."""
    sections = {
        name: decisive(name, getattr(settings, name).model_dump(mode="json"))
        for name in find_task(settings.task).sections
    }
    return json.dumps(sections, sort_keys=True, separators=(",", ":"))
