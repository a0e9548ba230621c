"""The scale of a slide, as a user gives it."""

from gigatile.errors import UserError

# Outside these bounds nothing is a microscope's pixel; a value in millimetres or a
# magnification in the wrong column is caught here.
MPP_BOUNDS = (0.01, 100.0)


def parse_mpp(text: str) -> float:
    """Return the micrometres per pixel that a user gives for a slide's level 0.

    Raises:
        UserError: it is no number, or none that a microscope has.
    """
    low, high = MPP_BOUNDS
    try:
        mpp = float(text)
    except ValueError:
        mpp = float("nan")
    if not low <= mpp <= high:
        raise UserError(f"mpp {text!r} must be micrometres per pixel, a number in {low}-{high:g}")
    return mpp
