"""The bundles of the server; without TensorFlow, so that a mistake is reported at once."""

from collections.abc import Sequence
from pathlib import Path

from gigatile.bundle.contents import Bundle, open_bundle
from gigatile.errors import all_faults


def open_bundles(folders: Sequence[Path]) -> list[Bundle]:
    """Open the bundles of a server.

    Raises:
        UserError: a bundle is damaged, or two have the same name and version.
    """
    bundles = [open_bundle(folder) for folder in folders]
    places: dict[tuple[str, int], list[Path]] = {}
    for bundle in bundles:
        key = (bundle.manifest.name, bundle.manifest.version)
        places.setdefault(key, []).append(bundle.folder)
    faults = [
        f"{name}, version {version}: {', '.join(map(str, folders_of_bundle))}"
        for (name, version), folders_of_bundle in places.items()
        if len(folders_of_bundle) > 1
    ]
    if faults:
        raise all_faults(
            "two bundles have the same name and version; copy one with another version: "
            "gigatile bundle DIR --out COPY --version 2",
            faults,
        )
    return bundles
