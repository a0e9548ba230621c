"""Unreadable tiles, and slides on which reading hangs or crashes."""

import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import tifffile
from known_slides import tiles_of_level_0, tissue, write_svs
from outcomes import assert_tiled, tile_line, with_bad_tiles

from gigatile.slides.reader import RegionError, open_slide
from gigatile.slides.reader_selection import ReaderChoice, choose_reader
from gigatile.slides.tiff import TiffLevel

# --- Unreadable tiles of a usable slide


@pytest.mark.parametrize("cores", [1, 3])
def test_unreadable_tiles_are_recorded_and_left_out(pyramid, tile, tmp_path, cores):
    """The native tile in column 3, row 2 covers 4 × 4 tiles."""
    good = tile(pyramid, folder="good")
    path = with_bad_tiles(pyramid, tmp_path / "s.svs", [2 * 8 + 3])
    outcome = tile(path, "--cores", cores)
    state = assert_tiled(outcome)
    assert state["tiles"]["kept"] == good.state["tiles"]["kept"] - 16
    assert state["tiles"]["dropped"] == {"background": 0, "unreadable": 16}
    index = outcome.index.set_index(["x", "y"])
    unreadable = index[index.dropped == "unreadable"]
    assert set(unreadable.index) == {
        (x, y) for x in range(768, 1024, 64) for y in range(512, 768, 64)
    }
    assert unreadable.sharpness.isna().all()
    assert state["unreadable"][0] == {
        "x": 768,
        "y": 512,
        "reason": "the native tile in column 3, row 2 cannot be read: not a JPEG stream",
    }
    kept = {(record.x, record.y): record.image for record in good.tiles}
    assert all(kept[record.x, record.y] == record.image for record in outcome.tiles)


def test_tiles_that_openslide_cannot_read_are_left_out(tile, tmp_path):
    path = write_svs(tmp_path / "good.svs", tissue(640, 640), compression="APERIO_JP2000_RGB")
    path = with_bad_tiles(path, tmp_path / "s.svs", [11, 50])
    outcome = tile(path)
    state = assert_tiled(outcome)
    assert state["tiles"]["dropped"] == {"background": 0, "unreadable": 2}
    assert [(tile_state["x"], tile_state["y"]) for tile_state in state["unreadable"]] == [
        (64, 64),
        (0, 320),
    ]
    assert "reading 64×64 px of level 0 at (64, 64) fails" in state["unreadable"][0]["reason"]
    assert len(outcome.tiles) == 98


def test_slide_with_too_many_unreadable_tiles_is_refused(tile, tmp_path):
    """5 of 100 tiles are unreadable."""
    path = write_svs(tmp_path / "good.svs", tissue(640, 640), compression="jpeg")
    path = with_bad_tiles(path, tmp_path / "s.svs", [7, 20, 44, 45, 99])
    assert assert_tiled(tile(path, max_unreadable=0.05))["tiles"]["kept"] == 95
    state = tile(path, max_unreadable=0.04, folder="bad").state
    assert state["state"] == "failed"
    assert state["reason"] == (
        "5 of its tiles cannot be read, more than 4% of the 100 with tissue; at (576, 576): the "
        "native tile in column 9, row 9 cannot be read: not a JPEG stream"
    )


def test_reason_is_the_same_with_any_number_of_cores(tile, tmp_path):
    """Other threads still use OpenSlide's handles when the slide is refused."""
    path = write_svs(tmp_path / "good.svs", tissue(640, 640), compression="APERIO_JP2000_RGB")
    path = with_bad_tiles(path, tmp_path / "s.svs", [3])
    state = tile(path, max_unreadable=0, folder="one").state
    assert state["reason"].startswith(
        "1 of its tiles cannot be read, more than 0% of the 100 with "
    )
    for number in range(5):
        assert tile(path, "--cores", 4, max_unreadable=0, folder=f"four{number}").state == state


def test_tiles_that_openslide_can_read_are_kept(tile, tmp_path):
    """Some scanners write extra bytes before the end of a stream; libjpeg warns about them."""
    path = write_svs(tmp_path / "good.svs", tissue(640, 640), compression="jpeg")
    good = tile(path, folder="good")
    positions = tiles_of_level_0(path)
    streams = [path.read_bytes()[start : start + size] for start, size in positions]
    for number in (33, 57):
        streams[number] = streams[number][:-2] + bytes(16) + b"\xff\xd9"
    with tifffile.TiffFile(path) as file:
        subsampling = file.pages[0].subsampling
    path = write_svs(
        tmp_path / "s.svs",
        iter(streams),
        compression="jpeg",
        shape=(640, 640, 3),
        subsampling=subsampling,
    )
    outcome = tile(path)
    assert assert_tiled(outcome)["reading"]["by"] == "native tiles"
    assert [record.image for record in outcome.tiles] == [record.image for record in good.tiles]


# --- Native tiles that cannot be compared with OpenSlide


def with_other_colours(source, target):
    """Copy a slide and declare a wrong colour space for the JPEG tiles of level 0."""
    data = bytearray(source.read_bytes())
    with tifffile.TiffFile(source) as file:
        tag = file.pages[0].tags["PhotometricInterpretation"]
        assert tag.value == tifffile.PHOTOMETRIC.YCBCR
        data[tag.valueoffset] = tifffile.PHOTOMETRIC.MINISWHITE
    target.write_bytes(data)
    return target


def test_slide_that_openslide_cannot_read_is_refused(tile, pyramid, tmp_path):
    """No region can be compared; the native tiles decode to wrong colours."""
    path = with_other_colours(pyramid, tmp_path / "s.svs")
    state = tile(path).state
    assert state["state"] == "failed"
    assert state["reading"]["by"] == "openslide"
    assert state["reading"]["compared"] == 0
    assert state["reading"]["why"].startswith(
        "only 0 of 4 regions could be compared with OpenSlide; first error: it opens, but reading "
    )
    assert "Improper JPEG sampling factors" in state["reason"]


@pytest.mark.parametrize(("readable", "by"), [(3, "openslide"), (4, "native tiles")])
def test_native_tiles_need_four_compared_regions(tmp_path, readable, by):
    """The slide has 16 tiles; the four that are compared first are unreadable."""
    whole = write_svs(tmp_path / "good.svs", tissue(256, 256), compression="jpeg")
    bad = [number for number in range(16) if number not in (1, 6, 9, 14)[:readable]]
    path = with_bad_tiles(whole, tmp_path / "s.svs", bad)
    boxes = [(x, y, 64, 64) for y in range(0, 256, 64) for x in range(0, 256, 64)]
    with open_slide(path) as slide:
        reading, level = choose_reader(path, slide, 0, np.array(boxes))
    assert (reading.by, reading.compared) == (by, readable)
    assert (level is None) == (by == "openslide")
    if level is not None:
        level.close()


def test_empty_regions_are_not_compared(tmp_path):
    """Both readers render a missing tile white, even if the colours of other tiles differ."""
    whole = write_svs(tmp_path / "good.svs", tissue(256, 256), compression="jpeg")
    data = bytearray(whole.read_bytes())
    with tifffile.TiffFile(whole) as file:
        tag = file.pages[0].tags["TileByteCounts"]
        assert (tag.dtype_name, tag.count) == ("LONG", 16)
        data[tag.valueoffset : tag.valueoffset + 64] = bytes(64)
    path = tmp_path / "s.svs"
    path.write_bytes(data)
    with open_slide(path) as slide:
        reading, level = choose_reader(path, slide, 0, np.array([(0, 0, 64, 64)] * 4))
    assert level is None
    assert reading == ReaderChoice(
        "openslide", "the file has no native tile in the regions to compare", 0
    )


# --- Slides that hang, crash or have no read permission


def test_stalled_slide_is_refused(tile, tmp_path):
    """A pipe without a writer blocks like a file on an unresponsive disk."""
    path = tmp_path / "s.svs"
    os.mkfifo(path)
    outcome = tile(path, "--stall-minutes", 0.01)
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.state["state"] == "failed"
    assert outcome.state["reason"] == "no progress for 0.01 minutes"
    assert outcome.state["stalled_minutes"] == 0.01
    assert len(outcome.files) == 4
    assert len(outcome.index) == 0


DYING = """
import os, signal
from gigatile.slides.tiff import TiffLevel
decode = TiffLevel.decode

def die(self, tile, stream):
    if tile == 20:
        os.kill(os.getpid(), signal.BY)
    return decode(self, tile, stream)

TiffLevel.decode = die
"""


def test_copy_of_a_stalled_slide_is_deleted(tile, pyramid, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    hanging = DYING.replace("BY", "SIGSTOP")
    outcome = tile(pyramid, "--stall-minutes", 0.05, "--copy-first", patch=hanging)
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert "no progress for" in outcome.state["reason"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_copy_is_deleted_on_sigterm(tile, pyramid, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    hanging = DYING.replace("BY", "SIGSTOP")
    job = subprocess.Popen(tile_line(pyramid, tmp_path / "out", "--copy-first", patch=hanging))
    until = time.monotonic() + 30
    while not list((tmp_path / "out").glob(".S1-*.tfrecord")):
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.5)
    job.terminate()
    assert job.wait(30) == 128 + signal.SIGTERM
    assert list((tmp_path / "scratch").iterdir()) == []
    # The next job of the slide deletes the temporary files.
    assert [name for name in tile(pyramid).files if name.startswith(".")] == []


@pytest.mark.parametrize("by", ["SIGSEGV", "SIGSTOP", "SIGKILL", "SIGXCPU"])
def test_decoder_crash_refuses_the_slide_and_a_kill_fails_the_job(tile, pyramid, by):
    """In the middle of the records; temporary files are deleted."""
    plain = tile(pyramid)
    patch = DYING.replace("BY", by)
    other = tile(pyramid, "--stall-minutes", 0.05, folder="other", patch=patch)
    done = other.process
    if by in ("SIGKILL", "SIGXCPU"):  # not caused by the slide: the job fails and can be repeated
        assert done.returncode == 2
        assert done.stderr.endswith(f"was killed by {by}; it may need more memory or time\n")
        assert other.files == []
        return
    assert done.returncode == 0, done.stderr
    reason = {
        "SIGSEGV": "the process that read it crashed (SIGSEGV)",
        "SIGSTOP": "no progress for 0.05 minutes",
    }
    assert other.state["reason"] == reason[by]
    assert other.state["source"] == plain.state["source"]
    assert other.files == plain.files
    assert (other.folder / "S1.tfrecord").read_bytes() == b""


UNEXPECTED = """
from gigatile.slides import slide_tiles

def fail(*_):
    raise ERROR

assert callable(slide_tiles.FUNCTION)
slide_tiles.FUNCTION = fail
"""


@pytest.mark.parametrize("function", ["area_fractions", "describe_source", "find_tissue"])
def test_unexpected_error_becomes_the_reason(tile, pyramid, function):
    """The traceback is in the job's log."""
    patch = UNEXPECTED.replace("FUNCTION", function).replace(
        "ERROR", "ValueError('of\\n' + 300 * 'x')"
    )
    outcome = tile(pyramid, patch=patch)
    assert outcome.process.returncode == 0, outcome.process.stderr
    state = outcome.state
    assert state["state"] == "failed"
    assert state["reason"] == f"unexpected error, please report: ValueError: of {197 * 'x'}…"
    assert outcome.process.stdout == f"S1: {state['reason']}\n"
    assert "Traceback (most recent call last)" in outcome.process.stderr
    assert ", in fail\n" in outcome.process.stderr
    assert (outcome.folder / "S1.tfrecord").read_bytes() == b""
    assert outcome.files == ["S1.jpg", "S1.json", "S1.parquet", "S1.tfrecord"]


def test_error_while_writing_leaves_no_records(tile, pyramid):
    patch = DYING.replace("os.kill(os.getpid(), signal.BY)", "raise ZeroDivisionError")
    outcome = tile(pyramid, "--cores", 2, patch=patch)
    assert outcome.state["reason"] == "unexpected error, please report: ZeroDivisionError"
    assert outcome.state["tiles"]["kept"] == 0
    assert len(outcome.files) == 4


def test_unwritable_facts_do_not_hide_the_reason(tile, pyramid):
    patch = "from gigatile.slides import slide_tiles, state\n"
    patch += "bad = state.SlideSource.model_construct(name='good.svs', width=float('nan'))\n"
    patch += "slide_tiles.describe_source = lambda *_: bad"
    outcome = tile(pyramid, patch=patch)
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.state["reason"].startswith("unexpected error, please report: ValueError: Out of")
    assert outcome.state["source"]["width"] is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("MemoryError('no room')", "MemoryError: no room"),
        ("OSError(28, 'No space left on device')", "error: No space left on device (on "),
        ("ModuleNotFoundError('no cv2')", "ModuleNotFoundError: no cv2"),
        ('RuntimeError("can\'t start new thread")', "RuntimeError: can't start new thread"),
    ],
)
def test_resource_error_fails_the_job(tile, pyramid, error, message):
    """The job fails and can be repeated."""
    outcome = tile(
        pyramid, patch=UNEXPECTED.replace("FUNCTION", "find_tissue").replace("ERROR", error)
    )
    assert outcome.process.returncode != 0
    assert message in outcome.process.stderr
    assert outcome.files == []


def test_invalid_tile_offsets_cause_no_unexpected_error(tile, pyramid, tmp_path):
    """The offsets have TIFF type 2, text; OpenSlide reads the slide or refuses it."""
    data = bytearray(pyramid.read_bytes())
    with tifffile.TiffFile(pyramid) as file:
        data[file.pages[0].tags["TileOffsets"].offset + 2] = 2
    path = tmp_path / "s.svs"
    path.write_bytes(data)
    outcome = tile(path)
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.process.stderr == ""
    assert "unexpected" not in str(outcome.state["reason"])


def test_reads_do_not_exceed_the_file(pyramid, tmp_path, monkeypatch):
    """A damaged directory declares a tile of 4 GB; this must not allocate 4 GB."""
    data = bytearray(pyramid.read_bytes())
    with tifffile.TiffFile(pyramid) as file:
        offset = file.pages[0].tags["TileByteCounts"].valueoffset + 4 * 11
    data[offset : offset + 4] = (0xFFFFFFF0).to_bytes(4, "little")
    path = tmp_path / "s.svs"
    path.write_bytes(data)
    requested = []
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda file, size, start: requested.append(size) or pread(file, size, start)
    )
    with open_slide(path) as slide:
        level = TiffLevel(path, slide, 0)
        stream = level.read_run(np.array([11]))[11]
        with pytest.raises(
            RegionError, match="column 3, row 1 cannot be read: the file is truncated"
        ):
            level.decode(11, stream)
        level.close()
    assert max(requested) < len(data)


@pytest.mark.parametrize(
    ("tag", "value", "message"),
    [
        ("ImageWidth", 131_072, "an image of 131072×1200 px needs 2,560 tiles, but 40 are listed"),
        ("ImageWidth", 900, "an image of 900×1200 px needs 20 tiles, but 40 are listed"),
        ("TileLength", 16, "an image of 1800×1200 px needs 600 tiles, but 40 are listed"),
    ],
)
def test_wrong_image_size_is_refused_before_reading(tile, pyramid, tmp_path, tag, value, message):
    """Without this check, a width of 131,072 took 23 s, and the slide was used."""
    data = bytearray(pyramid.read_bytes())
    with tifffile.TiffFile(pyramid) as file:
        entry = file.pages[0].tags[tag]
    size = 2 if entry.dtype_name == "SHORT" else 4
    data[entry.valueoffset : entry.valueoffset + size] = value.to_bytes(size, "little")
    path = tmp_path / "s.svs"
    path.write_bytes(data)
    count = "from gigatile.slides.reader import Slide\nread = Slide.region\n"
    count += "Slide.region = lambda *args: print('read') or read(*args)"
    outcome = tile(path, patch=count)
    assert outcome.state["reason"] == f"its TIFF directory is inconsistent: {message}"
    assert "read\n" not in outcome.process.stdout


def test_slide_without_read_permission_is_refused(pyramid, tile, tmp_path):
    path = tmp_path / "s.svs"
    shutil.copy(pyramid, path)
    path.chmod(0)
    # Root can read all files unless it drops these capabilities.
    unprivileged = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    outcome = tile(path, under=unprivileged if os.geteuid() == 0 else ())
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.state["reason"] == "it cannot be opened: Permission denied"
