"""Addresses of slides in the viewer of a server: `gigatile serve --run`."""

import hashlib


def viewer_id(run: str, slide: str, is_new: bool = False) -> str:
    """Return the id of a slide of a run in addresses: 32 hexadecimal digits.

    Args:
        run: its name.
        slide: the slide's id.
        is_new: whether it is of the sheet of new slides, where another one can have the same id.
    """
    key = "\0".join([run, slide, "new" if is_new else "cohort"])
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def viewer_address(server: str, run: str, slide: str) -> str:
    """Return the address of a test slide of a run in the viewer of a server."""
    return f"{server.rstrip('/')}/viewer/slides/{viewer_id(run, slide)}"
