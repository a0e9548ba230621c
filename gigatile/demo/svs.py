"""Write pixels as a pyramidal Aperio SVS file with the layout of the scanner's software."""

from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from gigatile.files import write_whole

TILE = 256  # px, side of the JPEG tiles
QUALITY = 80  # of the JPEG tiles
STRIP = 16  # rows per strip of the thumbnail
DOWNSAMPLES = (4, 16)  # of the levels after level 0


def write_svs(path: Path, pixels: np.ndarray, *, mpp: float, objective_power: int) -> None:
    """Write a slide as SVS: level 0, a thumbnail in strips, and levels with downsamples 4 and 16.

    The file is written atomically. Equal pixels give equal bytes: the file has no date and no
    software version.

    Args:
        path: the file to write; its folder is created.
        pixels: the slide at full resolution (height, width, 3) uint8 RGB.
        mpp: micrometres per pixel of `pixels`.
        objective_power: the objective's magnification in the file's metadata.

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
        # The default byte order is that of the machine.
        tifffile.TiffWriter(temporary, byteorder="<") as tiff,
    ):

        def write(image: np.ndarray, description: str, **layout: Any) -> None:
            tiff.write(
                image,
                photometric="rgb",  # of `image`; the file has YCbCr
                subsampling=(2, 2),
                compression="jpeg",
                compressionargs={"level": QUALITY},
                description=description,
                metadata=None,
                software=False,
                **layout,
            )

        write(pixels, f"{software}{scan} {coding}{facts}", tile=(TILE, TILE))
        # OpenSlide reads every tiled image as a level, and an image in strips in second place as
        # the thumbnail: the order is part of the format.
        thumbnail = levels[0]
        size = f"{thumbnail.shape[1]}x{thumbnail.shape[0]}"
        write(thumbnail, f"{software}{width}x{height} -> {size} - {facts}", rowsperstrip=STRIP)
        for level in levels:
            size = f"{level.shape[1]}x{level.shape[0]}"
            write(level, f"{software}{scan} -> {size} {coding}{facts}", tile=(TILE, TILE))


def shrink(pixels: np.ndarray, factor: int) -> np.ndarray:
    """Return `pixels` (height, width, 3) uint8 downsampled by `factor`: the mean of each block.

    Incomplete blocks at the edge are dropped, as by scanners, so the downsample of the file is
    slightly larger than `factor`. Integer arithmetic gives an exact result.
    """
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    whole = pixels[: height * factor, : width * factor]
    # Rows first, so that sums run over contiguous memory.
    sums = whole.reshape(height, factor, width * factor * 3).sum(axis=1, dtype=np.uint32)
    sums = sums.reshape(height, width, factor, 3).sum(axis=2, dtype=np.uint32)
    return ((sums + factor * factor // 2) // (factor * factor)).astype(np.uint8)
