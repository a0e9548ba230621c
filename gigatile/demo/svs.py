"""Writing pixels as a pyramidal Aperio SVS file, laid out as the scanner's software does it."""

from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from gigatile.files import write_whole

TILE = 256  # px, side of the file's own JPEG tiles
QUALITY = 80  # of the JPEG tiles
STRIP = 16  # rows per strip of the thumbnail
DOWNSAMPLES = (4, 16)  # of the levels above level 0


def write_svs(path: Path, pixels: np.ndarray, *, mpp: float, objective_power: int) -> None:
    """Write a slide as SVS: level 0, a thumbnail in strips, and levels 4 and 16 times smaller.

    The file is written whole or not at all, and equal pixels give equal bytes: it carries no date
    and no version of the writing software.

    Args:
        path: where to write; the folder is made.
        pixels: the slide at full resolution (height, width, 3) uint8 RGB.
        mpp: micrometres per pixel of `pixels`.
        objective_power: the objective's magnification that the file states.

    Raises:
        ValueError: `pixels` has another shape or type, or is too small for the smallest level.
    """
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"pixels are {pixels.shape} {pixels.dtype}, not (height, width, 3) uint8")
    height, width = pixels.shape[:2]
    if min(height, width) < max(DOWNSAMPLES):
        raise ValueError(f"{width}x{height} px is too small for a level {DOWNSAMPLES[-1]}x smaller")

    levels = [shrink(pixels, factor) for factor in DOWNSAMPLES]
    software = "Aperio Image Library v12.0.15\r\n"
    facts = f"|AppMag = {objective_power}|MPP = {mpp}|Source = synthetic, drawn by Gigatile"
    scan = f"{width}x{height} [0,0 {width}x{height}] ({TILE}x{TILE})"
    coding = f"JPEG/RGB Q={QUALITY}"

    with (
        write_whole(path) as temporary,
        # The byte order would else be the machine's own.
        tifffile.TiffWriter(temporary, byteorder="<") as tiff,
    ):

        def write(image: np.ndarray, description: str, **layout: Any) -> None:
            tiff.write(
                image,
                photometric="rgb",  # what the pixels are; the file holds YCbCr
                subsampling=(2, 2),
                compression="jpeg",
                compressionargs={"level": QUALITY},
                description=description,
                metadata=None,
                software=False,
                **layout,
            )

        write(pixels, f"{software}{scan} {coding}{facts}", tile=(TILE, TILE))
        # OpenSlide takes every tiled image for a level, and the second one in strips for the
        # thumbnail: the order is part of the format.
        thumbnail = levels[0]
        size = f"{thumbnail.shape[1]}x{thumbnail.shape[0]}"
        write(thumbnail, f"{software}{width}x{height} -> {size} - {facts}", rowsperstrip=STRIP)
        for level in levels:
            size = f"{level.shape[1]}x{level.shape[0]}"
            write(level, f"{software}{scan} -> {size} {coding}{facts}", tile=(TILE, TILE))


def shrink(pixels: np.ndarray, factor: int) -> np.ndarray:
    """Return `pixels` (height, width, 3) uint8, `factor` times smaller, each pixel a block's mean.

    Rows and columns that fill no whole block are left out, as scanners do: the file's own
    downsample is then a little above `factor`. In integers, so that the result is exact.
    """
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    whole = pixels[: height * factor, : width * factor]
    # Rows first: sums along the first axis of a block run over contiguous memory.
    sums = whole.reshape(height, factor, width * factor * 3).sum(axis=1, dtype=np.uint32)
    sums = sums.reshape(height, width, factor, 3).sum(axis=2, dtype=np.uint32)
    return ((sums + factor * factor // 2) // (factor * factor)).astype(np.uint8)
