"""Render pictures of a slide: its overview and its tissue mask."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from gigatile.files import write_whole
from gigatile.slides.reader import Slide

# Longest side of a picture, in pixels.
LONGEST = 2048


def render_overview(
    pixels: np.ndarray, downsample: tuple[float, float], slide: Slide
) -> Image.Image:
    """Return an overview, or a mask of it, as a picture that spans exactly the slide.

    Args:
        pixels: (height, width, 3) uint8 RGB, or (height, width) bool.
        downsample: level-0 pixels per pixel, across and down.
        slide: the open slide.
    """
    overview = Image.fromarray(pixels)
    across, down = downsample
    width = min(slide.width / across, overview.width)
    height = min(slide.height / down, overview.height)
    shrink = min(1, LONGEST / max(width, height))
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    resampling = Image.Resampling.NEAREST if overview.mode == "1" else Image.Resampling.BICUBIC
    return overview.resize(size, resampling, box=(0, 0, width, height))


def write_picture(path: Path, picture: Image.Image, kind: str, **options: int) -> None:
    """Write a picture, whole or not at all; `kind` and `options` are Pillow's."""
    # Encoded in memory first: Pillow does not notice that a full disk truncates the file.
    encoded = io.BytesIO()
    picture.save(encoded, kind, **options)
    with write_whole(path) as temporary:
        temporary.write_bytes(encoded.getbuffer())
