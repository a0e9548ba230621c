"""The names of the views of a square image, in settings."""

from typing import Any

# The symmetries of a square; rotations are counterclockwise.
VIEWS = (
    "identity",
    "rotate90",
    "rotate180",
    "rotate270",
    "flip",
    "rotate90_flip",
    "rotate180_flip",
    "rotate270_flip",
)


def named_views(value: Any, word: str = "all") -> Any:
    """Return the names of views in a setting; `word` is what it may be instead of a list."""
    if value == "all":
        value = VIEWS
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(f"found {value!r}; must be {word}, or a list of {', '.join(VIEWS)}")
    unknown = [name for name in names if name not in VIEWS]
    if unknown or len(set(names)) < len(names):
        fault = f"no such view: {unknown[0]!r}" if unknown else "a view is listed twice"
        raise ValueError(f"{fault}; must be {word}, or a list of {', '.join(VIEWS)}")
    return tuple(names)
