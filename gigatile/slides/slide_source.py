"""The description of a slide's files in its state."""

from pathlib import Path

from gigatile.slides.reader import Slide, SlideError
from gigatile.slides.scanner import scanner_of
from gigatile.slides.slide_files import fingerprint_of, size_and_time_of
from gigatile.slides.state import Level, SlideSource
from gigatile.stores.errors import StoreError


def describe_source(source: Path, slide: Slide) -> SlideSource:
    """Return what a slide's files and its header say.

    Args:
        source: the slide's file.
        slide: the same or a copy of it, open.

    Raises:
        SlideError: another file of the slide cannot be opened.
        StoreError: the slide is in a store, and cannot be read there.
    """
    try:
        return _describe(source, slide)
    except StoreError:
        raise  # perhaps no fault of the slide
    except OSError as error:  # another file of the slide than the one in the sheet
        name = Path(error.filename or "").name
        raise SlideError(f"{name} cannot be opened: {error.strerror}") from None


def _describe(source: Path, slide: Slide) -> SlideSource:
    return SlideSource(
        name=source.name,
        bytes=size_and_time_of(source)[0],
        fingerprint=fingerprint_of(source),
        vendor=slide.vendor,
        width=slide.width,
        height=slide.height,
        levels=[
            Level(width=width, height=height, downsample=down)
            for (width, height), down in zip(slide.level_sizes, slide.downsamples, strict=True)
        ],
        objective_power=slide.objective_power,
        scanner=scanner_of(slide.properties),
    )
