"""Write TIFF slides: generic, Leica, Philips, Trestle and Ventana."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from format_parts import (
    DOWNSAMPLES,
    POWER,
    jpeg,
    overlapping,
    padded,
    per_cm,
    pyramid,
    tiles,
    whole_tiles,
)

from gigatile.demo.svs import shrink

TILE = 128
PHILIPS_ATTRIBUTES = {
    "DICOM_MANUFACTURER": ("0008", "0070", "IString"),
    "DICOM_PIXEL_SPACING": ("0028", "0030", "IDoubleArray"),
    "PIIM_PIXEL_DATA_REPRESENTATION_COLUMNS": ("301D", "2007", "IUInt32"),
    "PIIM_PIXEL_DATA_REPRESENTATION_ROWS": ("301D", "2008", "IUInt32"),
    "PIIM_PIXEL_DATA_REPRESENTATION_SEQUENCE": ("1001", "8B01", "IDataObjectArray"),
    "PIM_DP_IMAGE_TYPE": ("301D", "1004", "IString"),
    "PIM_DP_SCANNED_IMAGES": ("301D", "1003", "IDataObjectArray"),
}


def write_level(
    tiff: tifffile.TiffWriter,
    pixels: np.ndarray,
    quality: int,
    *,
    coding: str = "YCBCR",
    subsampling: tuple[int, int] = (2, 2),
    missing: Collection[tuple[int, int]] = (),
    **layout: Any,
) -> None:
    """Write a level as JPEG tiles; the tiles in `missing` (row, column) have no bytes."""
    across = -(-pixels.shape[1] // TILE)

    def encoded() -> Iterator[bytes]:
        for index, tile in enumerate(tiles(whole_tiles(pixels, TILE), TILE)):
            left_out = divmod(index, across) in missing
            yield b"" if left_out else jpeg(tile, quality, coding=coding, subsampling=subsampling)

    tiff.write(
        encoded(),
        shape=pixels.shape,
        dtype=np.uint8,
        photometric="rgb",  # of `pixels`; the file has `coding`
        tile=(TILE, TILE),
        compression="jpeg",
        compressionargs={"outcolorspace": coding},
        subsampling=subsampling,
        metadata=None,
        **{"software": False} | layout,
    )


def write_generic_tiff(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float = 0.5,
    quality: int = 90,
    coding: str = "YCBCR",
    subsampling: tuple[int, int] = (2, 2),
    big: bool = True,
) -> Path:
    """Write a tiled pyramid, as converters do.

    Args:
        path: where to write.
        pixels: level 0.
        mpp: micrometres per pixel of level 0.
        quality: of the JPEG tiles.
        coding: the channels of the JPEG tiles, YCBCR or RGB.
        subsampling: chroma subsampling, across and down; (1, 1) with RGB.
        big: whether it is a BigTIFF.
    """
    with tifffile.TiffWriter(path, bigtiff=big, byteorder="<") as tiff:
        for factor, level in zip(DOWNSAMPLES, pyramid(pixels), strict=True):
            write_level(
                tiff,
                level,
                quality,
                coding=coding,
                subsampling=subsampling,
                subfiletype=int(factor > 1),  # OpenSlide accepts no other page as a level
                resolution=per_cm(mpp * factor),
                resolutionunit="CENTIMETER",
            )
    return path


def write_leica(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float = 0.5,
    quality: int = 90,
    margin: int = 64,
) -> Path:
    """Write an SCN file: a macro image of the glass, and the levels of one scanned region.

    Level 0 is as large as the glass: the region is `margin` px from all its edges.
    """
    height, width = pixels.shape[:2]
    glass = padded(pixels, height + 2 * margin, width + 2 * margin)
    macro = shrink(glass, 16)
    levels = pyramid(pixels)
    nm = round(1000 * mpp)  # an integer, so that the region is aligned to pixels

    def image(shapes: list[tuple[int, ...]], first: int, extent: tuple[int, ...], left: int) -> str:
        dimensions = "".join(
            f'<dimension sizeX="{wide}" sizeY="{high}" r="{r}" ifd="{first + r}"/>'
            for r, (high, wide, _) in enumerate(shapes)
        )
        return (
            f'<image name="image_{first}"><pixels sizeX="{shapes[0][1]}" sizeY="{shapes[0][0]}">'
            f"{dimensions}</pixels>"
            f'<view sizeX="{extent[1] * nm}" sizeY="{extent[0] * nm}" '
            f'offsetX="{left * nm}" offsetY="{left * nm}" spacingZ="0"/>'
            '<device model="Leica SCN400;Leica SCN" version="1.5.1.10804"/>'
            f"<scanSettings><objectiveSettings><objective>{POWER}</objective></objectiveSettings>"
            "<illuminationSettings><numericalAperture>0.4</numericalAperture>"
            "<illuminationSource>brightfield</illuminationSource></illuminationSettings>"
            "</scanSettings></image>"
        )

    description = (
        '<?xml version="1.0"?>'
        '<scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01" uuid="urn:uuid:0">'
        f'<collection name="slide" uuid="urn:uuid:1" sizeX="{glass.shape[1] * nm}" '
        f'sizeY="{glass.shape[0] * nm}"><barcode>MDAw</barcode>'
        + image([macro.shape], 0, glass.shape, 0)
        + image([level.shape for level in levels], 1, pixels.shape, margin)
        + "</collection></scn>"
    )
    with tifffile.TiffWriter(path, bigtiff=True, byteorder="<") as tiff:
        unit = {"resolutionunit": "CENTIMETER"}
        write_level(
            tiff, macro, quality, description=description, resolution=per_cm(mpp * 16), **unit
        )
        for factor, level in zip(DOWNSAMPLES, levels, strict=True):
            write_level(tiff, level, quality, resolution=per_cm(mpp * factor), **unit)
    return path


def write_philips(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float = 0.5,
    quality: int = 90,
    missing: Collection[tuple[int, int]] = (),
) -> Path:
    """Write a Philips TIFF file, in which every level is padded to whole tiles.

    The TIFF tags have the padded sizes, so only the XML gives the downsamples.

    Args:
        path: where to write.
        pixels: level 0; padded to whole tiles.
        mpp: micrometres per pixel of level 0.
        quality: of the JPEG tiles.
        missing: rows and columns of tiles of level 0 without bytes, as between scanned regions.
    """
    levels = [whole_tiles(level, TILE) for level in pyramid(whole_tiles(pixels, TILE))]

    def spacing(factor: int) -> str:
        mm = f"&quot;{mpp * factor / 1000:.10g}&quot;"
        return philips_attribute("DICOM_PIXEL_SPACING", f"{mm} {mm}")

    representations = "".join(
        '<DataObject ObjectType="PixelDataRepresentation">'
        + spacing(factor)
        + philips_attribute("PIIM_PIXEL_DATA_REPRESENTATION_COLUMNS", level.shape[1])
        + philips_attribute("PIIM_PIXEL_DATA_REPRESENTATION_ROWS", level.shape[0])
        + "</DataObject>"
        for factor, level in zip(DOWNSAMPLES, levels, strict=True)
    )
    sequence = f"<Array>{representations}</Array>"
    image = (
        '<Array><DataObject ObjectType="DPScannedImage">'
        + philips_attribute("PIM_DP_IMAGE_TYPE", "WSI")
        + spacing(1)
        + philips_attribute("PIIM_PIXEL_DATA_REPRESENTATION_SEQUENCE", sequence)
        + "</DataObject></Array>"
    )
    description = (
        '<?xml version="1.0" encoding="UTF-8" ?><DataObject ObjectType="DPUfsImport">'
        + philips_attribute("DICOM_MANUFACTURER", "PHILIPS")
        + philips_attribute("PIM_DP_SCANNED_IMAGES", image)
        + "</DataObject>"
    )
    with tifffile.TiffWriter(path, bigtiff=True, byteorder="<") as tiff:
        for number, level in enumerate(levels):
            write_level(
                tiff,
                level,
                quality,
                missing=() if number else missing,
                description=description if number == 0 else None,
                software="Philips DP v1.0",
                subfiletype=int(number > 0),
            )
    return path


def philips_attribute(name: str, value: object) -> str:
    group, element, kind = PHILIPS_ATTRIBUTES[name]
    return (
        f'<Attribute Name="{name}" Group="0x{group}" Element="0x{element}" PMSVR="{kind}">'
        f"{value}</Attribute>"
    )


def write_trestle(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float = 0.5,
    quality: int = 90,
    overlap: int = 16,
) -> Path:
    """Write a Trestle TIFF file; its tiles overlap their neighbours, in level 0 by `overlap`.

    The size of a level in the file counts overlaps twice.
    """
    overlaps = [overlap // factor for factor in DOWNSAMPLES]
    listed = " ".join(f"{twice} {twice}" for twice in overlaps)
    description = f"Background Color=FFFFFF;Objective Power={POWER};OverlapsXY= {listed}"
    with tifffile.TiffWriter(path, byteorder="<") as tiff:
        for factor, twice, level in zip(DOWNSAMPLES, overlaps, pyramid(pixels), strict=True):
            photos = overlapping(level, TILE, twice)
            height, width = (
                length + (count // TILE - 1) * twice
                for length, count in zip(level.shape[:2], photos.shape[:2], strict=True)
            )
            write_level(
                tiff,
                photos[:height, :width],
                quality,
                description=description,
                software="MedScan",
                # Unlike in the TIFF standard, these are micrometres per pixel.
                resolution=(mpp * factor, mpp * factor),
                resolutionunit="NONE",
            )
    return path


def write_ventana(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float = 0.5,
    quality: int = 90,
    overlap: int = 16,
) -> Path:
    """Write a BIF file; the tiles of level 0 overlap by `overlap`, which the file records.

    The slide is padded to whole tiles. Levels are downsampled from the tiles before stitching.
    """
    photos = overlapping(pixels, TILE, overlap)
    rows, columns = photos.shape[0] // TILE, photos.shape[1] // TILE

    def number(row: int, column: int) -> int:
        # The stage starts at the bottom left and reverses at the end of each row.
        travelled = rows - 1 - row
        return travelled * columns + (columns - 1 - column if travelled % 2 else column) + 1

    def joint(direction: str, first: int, second: int, across: int, down: int) -> str:
        return (
            f'<TileJointInfo FlagJoined="1" Confidence="100" Direction="{direction}" '
            f'Tile1="{first}" Tile2="{second}" OverlapX="{across}" OverlapY="{down}"/>'
        )

    joints = "".join(
        joint("RIGHT", number(row, column - 1), number(row, column), overlap, 0)
        for row in range(rows)
        for column in range(1, columns)
    ) + "".join(
        joint("UP", number(row, column), number(row - 1, column), 0, overlap)
        for row in range(1, rows)
        for column in range(columns)
    )
    scanner = f'<iScan Magnification="{POWER}" ScanRes="{mpp}" UnitNumber="0" Z-layers="1"/>'
    stitching = (
        '<EncodeInfo Ver="2"><SlideStitchInfo><ImageInfo AOIScanned="1" AOIIndex="0" '
        f'Width="{TILE}" Height="{TILE}" NumRows="{rows}" NumCols="{columns}" Pos-X="0" Pos-Y="0">'
        f"{joints}</ImageInfo></SlideStitchInfo>"
        '<AoiOrigin><AOI0 OriginX="0" OriginY="0"/></AoiOrigin></EncodeInfo>'
    )

    def xml(text: str) -> list[tuple[int, int, int, bytes, bool]]:
        data = text.encode() + b"\0"
        return [(700, 1, len(data), data, True)]

    with tifffile.TiffWriter(path, bigtiff=True, byteorder="<") as tiff:
        macro = shrink(pixels, 16)
        write_level(tiff, macro, quality, description="Label_Image", extratags=xml(scanner))
        for level, factor in enumerate(DOWNSAMPLES):
            write_level(
                tiff,
                whole_tiles(shrink(photos, factor), TILE),
                quality,
                description=f"level={level} mag={POWER / factor:g} quality={quality}",
                extratags=xml(stitching) if level == 0 else (),
            )
    return path
