"""Provoke every mistake in a sheet and every fault of a slide that the pages list."""

import faulthandler
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile

from gigatile.cohort.collect import check_remaining
from gigatile.cohort.samples import read_samples
from gigatile.cohort.splits import assign, check_labels
from gigatile.cohort.state_tables import SLIDE_TABLE
from gigatile.errors import UserError
from gigatile.settings.section import PLACEHOLDER
from gigatile.settings.split import SplitSettings
from gigatile.settings.tiles import TileSettings
from gigatile.slides import grid, scale, slide_tiles
from gigatile.slides.tiling import TilingFiles, tile_slide
from gigatile.tables import write_table

HEAD = "slide\tpatient\tlabel\tpath"
GOOD = "a\tp\tx\ta.svs"
SHEETS = {
    "commas": "slide,patient,label,path\na,p,x,a.svs\n",
    "another encoding": f"{HEAD}\na\tMüller\tx\ta.svs\n".encode("latin-1"),
    "no text": b"PK\x03\x04\0\0\n",
    "a missing column": "slide\tpatient\tpath\na\tp\ta.svs\n",
    "a doubled column": f"{HEAD}\tlabel\n",
    "no rows": f"{HEAD}\n",
    "a cell too many": f"{HEAD}\n{GOOD}\t\n",
    "an empty cell": f"{HEAD}\na\t\tx\ta.svs\n",
    "an invisible character": f"{HEAD}\na\tp\u200b\tx\ta.svs\n",
    "an unsafe id": f"{HEAD}\na/b\tp\tx\ta.svs\n",
    "an unknown split": f"{HEAD}\tsplit\n{GOOD}\tvalidation\n",
    "a magnification": f"{HEAD}\tmpp\n{GOOD}\t0,5\n",
    "a missing file": f"{HEAD}\na\tp\tx\tgone.svs\n",
    "a wildcard": f"{HEAD}\na\tp\tx\t{{slide}}.svs\n",
    "a loop of links": f"{HEAD}\na\tp\tx\tloop.svs\n",
    "a slide twice": f"{HEAD}\n{GOOD}\n{GOOD}\n",
    "a slide of two patients": f"{HEAD}\n{GOOD}\na\tq\tx\tb.svs\n",
    "a slide in two cases": f"{HEAD}\n{GOOD}\nA\tp\tx\tb.svs\n",
    "a slide of two labels": f"{HEAD}\n{GOOD}\na\tp\ty\tb.svs\n",
    "a file twice": f"{HEAD}\n{GOOD}\nb\tp\tx\ta.svs\n",
    "a patient in two splits": f"{HEAD}\tsplit\n{GOOD}\ttrain\nb\tp\tx\tb.svs\ttest\n",
    "a patient in two spellings": f"{HEAD}\n{GOOD}\nb\tP\tx\tb.svs\n",
    "a label in two spellings": f"{HEAD}\n{GOOD}\nb\tq\tX\tb.svs\n",
}


def faults(error: UserError) -> list[str]:
    """Return the single faults of a message that may list several."""
    heading, *rest = str(error).split("\n")
    listed = [line.removeprefix("  - ") for line in rest if line.startswith("  - ")]
    return listed or [heading]


@pytest.fixture
def provoked_by_sheets(tmp_path: Path) -> list[str]:
    """Return every message that a wrong sheet gets."""
    for name in ("a.svs", "b.svs"):
        (tmp_path / name).touch()
    (tmp_path / "loop.svs").symlink_to("loop.svs")
    messages = []
    sheet = tmp_path / "samples.tsv"
    with pytest.raises(UserError) as caught:
        read_samples(sheet)
    messages += faults(caught.value)
    for name, content in SHEETS.items():
        sheet.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError) as caught:
            read_samples(sheet)
            pytest.fail(f"{name}: taken for a good sheet")
        messages += faults(caught.value)

    sheet.write_text(f"{HEAD}\n{GOOD}\n")
    samples = read_samples(sheet)
    with pytest.raises(UserError) as caught:
        check_labels(samples, assign(samples, SplitSettings()), sheet)
    messages += faults(caught.value)
    placeholders = [replace(sample, label=PLACEHOLDER) for sample in samples]
    with pytest.raises(UserError) as caught:
        check_labels(placeholders, assign(samples, SplitSettings()), sheet)
    messages += faults(caught.value)
    table = tmp_path / "tiles.tsv"
    write_table(table, SLIDE_TABLE.columns, [("a", "p", "x", "test", "failed", 0, "no slide", "")])
    with pytest.raises(UserError) as caught:
        check_remaining(table)
    return messages + faults(caught.value)


def write_slide(path: Path, pixels: np.ndarray, mpp: str = "|MPP = 0.5", **layout) -> Path:
    """Write an Aperio slide of one level."""
    described = f"Aperio Image Library v12.0.15\r\n{pixels.shape[1]}x{pixels.shape[0]}{mpp}"
    defaults = {"tile": (64, 64), "description": described, "compression": "zlib"}
    layout = defaults | layout
    tifffile.imwrite(path, pixels, photometric="rgb", metadata=None, **layout)
    return path


def bad_slides(folder: Path) -> Iterator[tuple[Path, dict]]:
    """Yield a slide for every kind of fault, and the settings that bring it out."""
    glass = np.full((320, 320, 3), 243, np.uint8)
    stained = np.full((320, 320, 3), (190, 110, 160), np.uint8)
    text = folder / "text.svs"
    text.write_text("no slide")
    yield text, {}
    yield folder, {}
    other = folder / "ct.dcm"
    other.write_bytes(bytes(128) + b"DICM" + bytes(300))
    yield other, {}
    unknown = write_slide(folder / "unknown.svs", stained, compression=None)
    with tifffile.TiffFile(unknown) as tiff:
        offset = tiff.pages[0].tags["Compression"].valueoffset
    data = bytearray(unknown.read_bytes())
    data[offset : offset + 2] = (52479).to_bytes(2, "little")
    unknown.write_bytes(data)
    yield unknown, {}
    damaged = write_slide(folder / "damaged.svs", stained, compression="jpeg")
    with tifffile.TiffFile(damaged) as tiff:
        offset, length = tiff.pages[0].dataoffsets[7], tiff.pages[0].databytecounts[7]
    data = bytearray(damaged.read_bytes())
    data[offset : offset + length] = bytes(length)
    damaged.write_bytes(data)
    yield damaged, {"max_unreadable": 0}
    with tifffile.TiffFile(damaged) as tiff:
        places = list(zip(tiff.pages[0].dataoffsets, tiff.pages[0].databytecounts, strict=True))
    for offset, length in places:
        data[offset : offset + length] = bytes(length)
    wide = bytearray(damaged.read_bytes())
    with tifffile.TiffFile(damaged) as tiff:
        offset = tiff.pages[0].tags["ImageWidth"].valueoffset
    wide[offset : offset + 4] = (64_000).to_bytes(4, "little")
    (folder / "wide.svs").write_bytes(wide)
    yield folder / "wide.svs", {}
    ruined = folder / "ruined.svs"
    ruined.write_bytes(data)
    yield ruined, {}
    yield (
        write_slide(
            folder / "oblong.tiff",
            stained,
            description="",
            resolution=(20_000, 40_000),
            resolutionunit="CENTIMETER",
        ),
        {},
    )
    silent = write_slide(folder / "silent.svs", stained, mpp="|AppMag = 20")
    yield silent, {"mpp": 0.5, "objectives": ()}
    yield silent, {"encoding": "lossless"}
    yield silent, {"uniform": "drop", "uniform_limit": 255}
    pipe = folder / "pipe.svs"
    os.mkfifo(pipe)
    yield pipe, {"stall_minutes": 0.01}
    yield write_slide(folder / "coarse.svs", stained), {"mpp": 0.25}
    yield write_slide(folder / "small.svs", stained[:48]), {}
    yield write_slide(folder / "dark.svs", glass // 10), {}
    yield write_slide(folder / "glass.svs", glass), {}
    corner = glass.copy()
    corner[118:138, 118:138] = stained[0, 0]
    yield write_slide(folder / "sliver.svs", corner), {}


def crash(*_: object) -> None:
    """End this process as a codec with an invalid read would, without a report of pytest."""
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.fixture
def provoked_by_slides(tmp_path: Path) -> list[str]:
    """Return the reason that is recorded for every bad slide."""
    kinds = ("tfrecord", "json", "jpg", "parquet")
    files = TilingFiles(*(tmp_path / f"out/S1.{kind}" for kind in kinds))
    reasons = []
    for source, options in bad_slides(tmp_path):
        settings = TileSettings(size=64, **options)
        state = tile_slide(source, "S1", None, settings, files)
        assert state.state == "failed", source.name
        reasons.append(state.reason)
    # There is no file that crashes a current codec: known crashes are fixed.
    good = write_slide(tmp_path / "good.svs", np.full((320, 320, 3), (190, 110, 160), np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "MAX_TILES", 24)
        reasons.append(tile_slide(good, "S1", None, TileSettings(size=64), files).reason)
        patch.setattr(grid, "MAX_TILES", 25)
        patch.setattr(slide_tiles, "MAX_REGION_BYTES", 1000)
        reasons.append(tile_slide(good, "S1", None, TileSettings(size=64), files).reason)
        patch.undo()
        patch.setattr(scale, "finest_is_resampled", lambda _: True)
        reasons.append(tile_slide(good, "S1", None, TileSettings(size=64), files).reason)
        patch.undo()
        patch.setattr(slide_tiles, "find_tissue", int)  # which takes other arguments
        reasons.append(tile_slide(good, "S1", None, TileSettings(size=64), files).reason)
        patch.setattr(slide_tiles, "find_tissue", crash)
        reasons.append(tile_slide(good, "S1", None, TileSettings(size=64), files).reason)
    return reasons
