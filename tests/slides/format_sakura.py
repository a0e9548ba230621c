"""Write slides in Sakura's format, SVSLIDE: an SQLite database."""

import contextlib
import sqlite3
import struct
from collections.abc import Collection
from pathlib import Path

import imagecodecs
import numpy as np
from format_parts import DOWNSAMPLES, POWER, pyramid, tiles, whole_tiles

TILE = 128
BLOBS = "SVGigaPixelImageXPO"  # the table of pixels; a configuration table has its name
TABLES = f"""
CREATE TABLE DataManagerSQLiteConfigXPO (TableName TEXT);
INSERT INTO DataManagerSQLiteConfigXPO VALUES ('{BLOBS}');
CREATE TABLE {BLOBS} (id TEXT PRIMARY KEY, size INTEGER, data BLOB);
CREATE TABLE SVSlideDataXPO (
    OID INTEGER PRIMARY KEY, SlideId TEXT, Date TEXT, Description TEXT, Creator TEXT,
    DiagnosisCode TEXT, Keywords TEXT
);
INSERT INTO SVSlideDataXPO VALUES (1, 'slide', '', '', '', '', '');
CREATE TABLE SVHRScanDataXPO (
    OID INTEGER PRIMARY KEY, ParentSlide INTEGER, ScanId TEXT, Date TEXT, Name TEXT,
    Description TEXT, ResolutionMmPerPix REAL, NominalLensMagnification REAL, FocussingMethod TEXT
);
"""


def write_sakura(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float = 0.5,
    quality: int = 90,
    missing: Collection[tuple[int, int]] = (),
) -> Path:
    """Write a database in which every tile is three greyscale JPEGs: red, green and blue.

    Args:
        path: where to write.
        pixels: level 0.
        mpp: micrometres per pixel of level 0.
        quality: of the JPEGs.
        missing: rows and columns of tiles of level 0 that are not in the file.
    """
    height, width = pixels.shape[:2]
    header = struct.pack("<5I", TILE, width, height, 0, 1)  # one focal plane
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executescript(TABLES)
        database.execute(
            "INSERT INTO SVHRScanDataXPO VALUES (1, 1, 'scan', '', '', '', ?, ?, '')",
            (mpp / 1000, POWER),
        )
        blobs: dict[str, bytes | str] = {"++MagicBytes": "SVGigaPixelImage", "Header": header}
        for factor, level in zip(DOWNSAMPLES, pyramid(pixels), strict=True):
            across = -(-level.shape[1] // TILE)
            for index, tile in enumerate(tiles(whole_tiles(level, TILE), TILE)):
                row, column = divmod(index, across)
                if factor == 1 and (row, column) in missing:
                    continue
                # Positions are in pixels of level 0, in all levels.
                left, top = column * TILE * factor, row * TILE * factor
                for colour in range(3):
                    name = f"T;{left}|{top};{factor};{colour};0"
                    grey = np.ascontiguousarray(tile[..., colour])
                    blobs[name] = imagecodecs.jpeg8_encode(grey, level=quality)
        database.executemany(
            f"INSERT INTO {BLOBS} VALUES (?, ?, ?)",
            [(name, len(data), data) for name, data in blobs.items()],
        )
    return path
