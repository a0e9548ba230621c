"""Write slides in 3DHISTECH's format, MIRAX."""

import hashlib
import struct
from collections.abc import Collection
from pathlib import Path

import numpy as np
from format_parts import POWER, jpeg, overlapping, tiles, whole_tiles

from gigatile.demo.svs import shrink

IMAGE = 64  # px, side of the images in the file
DIVISIONS = 2  # images per side of a camera photo
PHOTO = IMAGE * DIVISIONS
LEVELS = 4  # each half as large as the previous level
WHITE = 0xFFFFFF
VERSION = b"01.02"


def write_mirax(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float = 0.5,
    quality: int = 90,
    overlap: int = 16,
    missing: Collection[tuple[int, int]] = (),
) -> Path:
    """Write a MIRAX slide: `path`, and a folder of the same name without its suffix.

    The camera takes photos of 128 px that overlap their neighbours; the slide is padded to whole
    photos. Levels are downsampled from the photos before stitching.

    Args:
        path: ends in `.mrxs`.
        pixels: level 0.
        mpp: micrometres per pixel of level 0.
        quality: of the JPEGs.
        overlap: of two photos, px; a multiple of 8 keeps photos on whole pixels in all levels.
        missing: rows and columns of photos that are not in the file, as for empty glass.
    """
    mosaic = overlapping(pixels, PHOTO, overlap)
    rows, columns = mosaic.shape[0] // PHOTO, mosaic.shape[1] // PHOTO
    taken = np.ones((rows, columns), bool)
    for row, column in missing:
        taken[row, column] = False
        mosaic[row * PHOTO : (row + 1) * PHOTO, column * PHOTO : (column + 1) * PHOTO] = 255
    identity = hashlib.sha256(mosaic.tobytes()).hexdigest()[:32].upper()

    data = bytearray(VERSION + identity.encode())
    levels = []  # per level, for each image: number, offset, length, file
    for level in range(LEVELS):
        factor = 2**level
        picture = whole_tiles(shrink(mosaic, factor), IMAGE)
        across = picture.shape[1] // IMAGE
        entries = []
        for number, image in enumerate(tiles(picture, IMAGE)):
            # An image is numbered by its top left image in level 0.
            top, left = number // across * factor, number % across * factor
            row, column = top // DIVISIONS, left // DIVISIONS
            spanned = max(1, factor // DIVISIONS)  # photos, across and down
            if taken[row : row + spanned, column : column + spanned].any():
                encoded = jpeg(image, quality)
                entries.append((top * columns * DIVISIONS + left, len(data), len(encoded), 0))
                data += encoded
        levels.append(entries)

    advance = PHOTO - overlap
    positions = b"".join(
        struct.pack("<bii", 0, column * advance, row * advance)
        for row in range(rows)
        for column in range(columns)
    )
    position = (len(data), len(positions), 0)
    data += positions

    folder = path.with_suffix("")
    folder.mkdir(parents=True)
    (folder / "Data0000.dat").write_bytes(data)
    (folder / "Index.dat").write_bytes(index(identity, levels, position))
    text = slidedat(identity, columns * DIVISIONS, rows * DIVISIONS, mpp, overlap)
    (folder / "Slidedat.ini").write_text(text, newline="\r\n")
    path.write_bytes(jpeg(shrink(pixels, 8), quality))
    return path


def index(
    identity: str,
    levels: list[list[tuple[int, int, int, int]]],
    position: tuple[int, int, int],
) -> bytes:
    """Return the index file, with the offsets of images and of the photos' positions.

    Two roots point to two tables, the tables point to heads of lists, and a list has one page here:
    its number of entries, the offset of the next page, and the entries.
    """
    file = bytearray(VERSION + identity.encode())
    roots = len(file)
    file += bytes(8)

    def add_list(count: int, *values: int) -> int:
        file.extend(struct.pack(f"<{2 + len(values)}i", count, 0, *values))
        page = len(file) - 4 * (2 + len(values))
        file.extend(struct.pack("<2i", 0, page))
        return len(file) - 8

    def add_table(heads: list[int]) -> int:
        file.extend(struct.pack(f"<{len(heads)}i", *heads))
        return len(file) - 4 * len(heads)

    pictures = add_table(
        [add_list(len(entries), *(v for entry in entries for v in entry)) for entries in levels]
    )
    others = add_table([add_list(1, 0, 0, *position)])
    struct.pack_into("<2i", file, roots, pictures, others)
    return bytes(file)


def slidedat(identity: str, columns: int, rows: int, mpp: float, overlap: int) -> str:
    """Return the text of Slidedat.ini; `columns` and `rows` count images."""
    sections: dict[str, dict[str, object]] = {
        "GENERAL": {
            "SLIDE_VERSION": VERSION.decode(),
            "SLIDE_ID": identity,
            "IMAGENUMBER_X": columns,
            "IMAGENUMBER_Y": rows,
            "OBJECTIVE_MAGNIFICATION": POWER,
            "CameraImageDivisionsPerSide": DIVISIONS,
        },
        "HIERARCHICAL": {
            "HIER_COUNT": 1,
            "NONHIER_COUNT": 1,
            "INDEXFILE": "Index.dat",
            "HIER_0_NAME": "Slide zoom level",
            "HIER_0_COUNT": LEVELS,
            "NONHIER_0_NAME": "VIMSLIDE_POSITION_BUFFER",
            "NONHIER_0_COUNT": 1,
            "NONHIER_0_VAL_0": "default",
            "NONHIER_0_VAL_0_SECTION": "NONHIERLAYER_0_SECTION",
        },
        "DATAFILE": {"FILE_COUNT": 1, "FILE_0": "Data0000.dat"},
        "NONHIERLAYER_0_SECTION": {"VIMSLIDE_POSITION_DATA_FORMAT_VERSION": 257},
    }
    for level in range(LEVELS):
        name = f"LAYER_0_LEVEL_{level}_SECTION"
        sections["HIERARCHICAL"][f"HIER_0_VAL_{level}"] = f"ZoomLevel_{level}"
        sections["HIERARCHICAL"][f"HIER_0_VAL_{level}_SECTION"] = name
        sections[name] = {
            "OVERLAP_X": overlap / 2**level,
            "OVERLAP_Y": overlap / 2**level,
            "MICROMETER_PER_PIXEL_X": mpp * 2**level,
            "MICROMETER_PER_PIXEL_Y": mpp * 2**level,
            "IMAGE_FORMAT": "JPEG",
            "IMAGE_FILL_COLOR_BGR": WHITE,
            "DIGITIZER_WIDTH": IMAGE,
            "DIGITIZER_HEIGHT": IMAGE,
            "IMAGE_CONCAT_FACTOR": int(level > 0),  # doublings since the previous level
        }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
        for name, values in sections.items()
    )
