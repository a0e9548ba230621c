"""Parse the scale of a slide in a sheet or on a command line."""

from gigatile.errors import UserError

# Plausible micrometres per pixel. Millimetres or a magnification in this column are out of bounds.
MPP_BOUNDS = (0.01, 100.0)


def parse_mpp(text: str) -> float:
    """Return the micrometres per pixel of level 0.

    Raises:
        UserError: it is not a number, or not plausible.
    """
    low, high = MPP_BOUNDS
    try:
        mpp = float(text)
    except ValueError:
        mpp = float("nan")
    if not low <= mpp <= high:
        raise UserError(f"mpp {text!r} must be micrometres per pixel, a number in {low}-{high:g}")
    return mpp
