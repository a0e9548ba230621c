"""Write SVS files with known pixels, for tests."""

from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from gigatile.slides.grid import Grid

GLASS = (243, 243, 243)
STAIN = (190, 110, 160)


def glass(height: int, width: int) -> np.ndarray:
    """Return an empty slide: (height, width, 3) uint8."""
    return np.full((height, width, 3), GLASS, np.uint8)


def tissue(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return stained tissue, (height, width, 3) uint8, in which no two tiles look alike."""
    noise = np.random.default_rng(seed).integers(-25, 26, (height, width, 1))
    return (np.array(STAIN) + noise).astype(np.uint8)


def aperio_description(width: int, height: int, mpp: object = 0.5, power: object = 20) -> str:
    """Return the ImageDescription of an Aperio slide; None leaves a field out."""
    fields = "".join(
        f"|{name} = {value}" for name, value in (("AppMag", power), ("MPP", mpp)) if value
    )
    return f"Aperio Image Library v12.0.15\r\n{width}x{height} [0,0 {width}x{height}]{fields}"


def write_svs(
    path: Path,
    *levels: Any,
    mpp: object = 0.5,
    power: object = 20,
    compression: str | None = "zlib",
    tile: int = 64,
    **layout: Any,
) -> Path:
    """Write an Aperio slide with these levels, lossless by default.

    A level may be an iterator of encoded tiles, if `shape` is given.
    """
    height, width = layout["shape"][:2] if "shape" in layout else levels[0].shape[:2]
    if "shape" in layout:
        layout["dtype"] = np.uint8
    with tifffile.TiffWriter(path, byteorder="<") as tiff:
        for level in levels:
            tiff.write(
                level,
                photometric="rgb",
                tile=(tile, tile),
                compression=compression,
                description=aperio_description(width, height, mpp, power),
                metadata=None,
                software=False,
                **layout,
            )
    return path


def tiles_of_level_0(path: Path) -> list[tuple[int, int]]:
    """Return the offset and size in bytes of each tile of a TIFF file's first image."""
    with tifffile.TiffFile(path) as tiff:
        page = tiff.pages[0]
        return list(zip(page.dataoffsets, page.databytecounts, strict=True))


def make_grid(
    size: int,
    extent: float,
    columns: int,
    rows: int,
    *,
    mpp: float | None = None,
    level: int = 0,
    scale: tuple[float, float] = (1, 1),
    resampled: bool = False,
) -> Grid:
    """Return a grid of tiles, by default of level 0."""
    return Grid(size, mpp, extent, level, scale, resampled, columns, rows)
