"""The section `slide_instances`."""

from pydantic import Field

from gigatile.settings.detection import DetectionSettings
from gigatile.settings.section import Section

# Micrometres per pixel of level 0 for the density map of a slide of unknown scale.
ASSUMED_MPP = 0.5


class SlideInstanceSettings(Section):
    """How the instances of whole slides are detected."""

    mpp: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Micrometres per pixel at which slides are read: that of the training images."
        "\nnull: instances.mpp, or the mpp of all training images in the sheet; else level 0.",
    )
    window: int | None = Field(
        None,
        ge=64,
        le=8192,
        description="Side of the windows in which a slide is processed, in pixels at this scale."
        "\nnull: the shorter side of detection.canvas, divided by detection.scale.",
    )
    overlap: int | None = Field(
        None,
        ge=20,
        le=4096,
        description="Overlap of neighbouring windows in pixels; at most half of a window. "
        "Instances up to this size\nare whole in at least one window. null: a quarter of a window.",
    )
    score_threshold: float = Field(0.5, ge=0, lt=1, description="Lowest score of an instance.")
    max_unreadable: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Unreadable windows are left out; a slide with a larger fraction of them "
        "fails.",
    )
    density_um: float = Field(
        100,
        gt=0,
        le=100_000,
        description="Side of the squares of the density map in micrometres. On slides of unknown "
        "scale, a pixel\nof level 0 counts as 0.5 micrometres.",
    )


def window_size(settings: SlideInstanceSettings, detection: DetectionSettings) -> tuple[int, int]:
    """Return side and overlap of the windows in pixels before resizing.

    The default side is that of the part of an image that the model sees in a step of its training.

    Raises:
        ValueError: the overlap is more than half of the side.
    """
    side = settings.window
    if side is None:
        side = detection.short_edge or max(64, round(min(detection.canvas) / detection.scale))
    overlap = max(20, side // 4) if settings.overlap is None else settings.overlap
    if 2 * overlap > side:
        raise ValueError(
            f"slide_instances.overlap: found {overlap}; must be at most half of a window, which "
            f"has {side} pixels"
        )
    return side, overlap
