"""What a slide's tiling does beyond the good case: rules, faults, cores, and tiles as they are."""

import io
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import openslide
import pytest
import tifffile
from known_slides import GLASS, STAIN, glass, tiles_of_level_0, tissue, write_svs
from PIL import Image

from gigatile.demo.svs import shrink
from gigatile.demo.svs import write_svs as write_demo_svs
from gigatile.records.tile import decode_jpeg, encode_jpeg
from gigatile.settings.tiles import TileSettings


@pytest.fixture(scope="module")
def pyramid(tmp_path_factory):
    """A slide as a scanner writes it: JPEG tiles of 256 px, three levels; all of it tissue."""
    path = tmp_path_factory.mktemp("pyramid") / "good.svs"
    write_demo_svs(path, tissue(1200, 1800), mpp=0.5, objective_power=20)
    return path


def with_bad_tiles(source, target, which):
    """Copy a slide with some of its own tiles of level 0 overwritten by zeros."""
    data = bytearray(source.read_bytes())
    for offset, length in np.array(tiles_of_level_0(source))[which].reshape(-1, 2).tolist():
        data[offset : offset + length] = bytes(length)
    target.write_bytes(data)
    return target


def assert_tiled(outcome) -> dict:
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.state["state"] == "tiled", outcome.state["reason"]
    assert (
        outcome.state["tiles"]["kept"] == len(outcome.tiles) == (outcome.index.dropped == "").sum()
    )
    return outcome.state


# --- Both ways to read give the same tiles


def test_own_tiles_and_openslide_give_the_same_records(pyramid, tile, tmp_path, monkeypatch):
    ours = tile(pyramid, folder="ours")
    assert assert_tiled(ours)["reading"] == {"by": "own tiles", "why": None, "compared": 4}
    # A file of a format that is not in the list goes to OpenSlide.
    program = """
import runpy, sys
from gigatile.slides import tiff
tiff.FORMATS = ()
sys.argv = ["scripts/tile_slide.py", *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    arguments = [str(one).replace("/ours/", "/theirs/") for one in ours.process.args[2:]]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    theirs = type(ours)(done, tmp_path / "theirs")
    assert theirs.state["reading"]["by"] == "openslide"
    for name in ("S1.tfrecord", "S1.parquet", "S1.png", "S1.jpg"):
        assert (ours.folder / name).read_bytes() == (theirs.folder / name).read_bytes()


def test_pixels_that_differ_from_openslides_send_the_slide_to_openslide(tile, pyramid, tmp_path):
    """The file's tiles are YCbCr; our way is made to take them for RGB."""
    path = tmp_path / "s.svs"
    shutil.copy(pyramid, path)
    program = """
import sys, runpy
from gigatile.slides import jpeg, tiff
right = tiff.header_of
tiff.header_of = lambda tables, ycbcr: right(tables, not ycbcr)
sys.argv = ["scripts/tile_slide.py", *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    plain = tile(path)
    arguments = [str(one).replace("/out/", "/other/") for one in plain.process.args[2:]]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    other = type(plain)(done, tmp_path / "other")
    assert other.state["reading"]["by"] == "openslide"
    assert "its own tiles differ from OpenSlide's by up to " in other.state["reading"]["why"]
    assert (other.folder / "S1.tfrecord").read_bytes() == (
        plain.folder / "S1.tfrecord"
    ).read_bytes()


@pytest.mark.parametrize("settings", [{}, {"mpp": 0.8}, {"mpp": 2.0}, {"stain": "reinhard"}])
def test_any_number_of_cores_gives_the_same_bytes(pyramid, tile, settings):
    one = tile(pyramid, folder="one", **settings)
    three = tile(pyramid, "--cores", 3, folder="three", **settings)
    assert_tiled(three)
    for name in one.files:
        assert (one.folder / name).read_bytes() == (three.folder / name).read_bytes(), name


def test_cores_where_openslide_reads(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(640, 640), compression="APERIO_JP2000_RGB")
    one, three = tile(path, folder="one"), tile(path, "--cores", 3, folder="three")
    assert assert_tiled(three)["reading"]["why"] == "its tiles are APERIO_JP2000_RGB, not JPEG"
    for name in one.files:
        assert (one.folder / name).read_bytes() == (three.folder / name).read_bytes(), name


def test_a_slide_that_is_copied_first(pyramid, tile, tmp_path, monkeypatch):
    plain = tile(pyramid, folder="plain")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    program = """
import runpy, sys
from gigatile.slides import tiling
opened = tiling.open_slide
tiling.open_slide = lambda path: print(path, flush=True) or opened(path)
sys.argv = ["scripts/tile_slide.py", *sys.argv[1:], "--copy-first"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    arguments = [str(one).replace("/plain/", "/copied/") for one in plain.process.args[2:]]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "scratch"))
    copied = type(plain)(done, tmp_path / "copied")
    for name in plain.files:
        assert (plain.folder / name).read_bytes() == (copied.folder / name).read_bytes(), name
    assert list((tmp_path / "scratch").iterdir()) == []


# --- One bad tile inside a good slide


@pytest.mark.parametrize("cores", [1, 3])
def test_bad_tiles_are_recorded_and_left_out(pyramid, tile, tmp_path, cores):
    """The slide's own tile of column 3, row 2: of ours, 4 × 4 show some of it."""
    good = tile(pyramid, folder="good")
    path = with_bad_tiles(pyramid, tmp_path / "s.svs", [2 * 8 + 3])
    outcome = tile(path, "--cores", cores)
    state = assert_tiled(outcome)
    assert state["tiles"]["kept"] == good.state["tiles"]["kept"] - 16
    assert state["tiles"]["dropped"] == {"background": 0, "unreadable": 16}
    index = outcome.index.set_index(["x", "y"])
    lost = index[index.dropped == "unreadable"]
    assert set(lost.index) == {(x, y) for x in range(768, 1024, 64) for y in range(512, 768, 64)}
    assert lost.sharpness.isna().all()
    assert state["unreadable"][0] == {
        "x": 768,
        "y": 512,
        "reason": "its own tile of column 3, row 2 cannot be read: not a JPEG stream",
    }
    kept = {(one.x, one.y): one.image for one in good.tiles}
    assert all(kept[one.x, one.y] == one.image for one in outcome.tiles)


def test_bad_tiles_of_a_slide_that_openslide_reads(tile, tmp_path):
    path = write_svs(tmp_path / "good.svs", tissue(640, 640), compression="APERIO_JP2000_RGB")
    path = with_bad_tiles(path, tmp_path / "s.svs", [11, 50])
    outcome = tile(path)
    state = assert_tiled(outcome)
    assert state["tiles"]["dropped"] == {"background": 0, "unreadable": 2}
    assert [(one["x"], one["y"]) for one in state["unreadable"]] == [(64, 64), (0, 320)]
    assert "reading 64×64 px of level 0 at (64, 64) fails" in state["unreadable"][0]["reason"]
    assert len(outcome.tiles) == 98


def test_the_limit_of_bad_tiles(tile, tmp_path):
    """Of 100 tiles 5 are bad."""
    path = write_svs(tmp_path / "good.svs", tissue(640, 640), compression="jpeg")
    path = with_bad_tiles(path, tmp_path / "s.svs", [7, 20, 44, 45, 99])
    assert assert_tiled(tile(path, max_unreadable=0.05))["tiles"]["kept"] == 95
    state = tile(path, max_unreadable=0.04, folder="bad").state
    assert state["state"] == "failed"
    assert state["reason"] == (
        "5 of its tiles cannot be read, more than 4% of the 100 with tissue; at (576, 576): its "
        "own tile of column 9, row 9 cannot be read: not a JPEG stream"
    )


def test_a_bad_slide_has_its_reason_on_any_number_of_cores(tile, tmp_path):
    """OpenSlide's handles are in use by other threads when it is given up."""
    path = write_svs(tmp_path / "good.svs", tissue(640, 640), compression="APERIO_JP2000_RGB")
    path = with_bad_tiles(path, tmp_path / "s.svs", [3])
    one = tile(path, max_unreadable=0, folder="one").state
    assert one["reason"].startswith("1 of its tiles cannot be read, more than 0% of the 100 with ")
    for number in range(5):
        assert tile(path, "--cores", 4, max_unreadable=0, folder=f"four{number}").state == one


def test_what_openslide_reads_is_not_bad(tile, tmp_path):
    """Bytes too many before a stream's end, as some scanners write: libjpeg warns of them."""
    path = write_svs(tmp_path / "good.svs", tissue(640, 640), compression="jpeg")
    good = tile(path, folder="good")
    places = tiles_of_level_0(path)
    streams = [path.read_bytes()[at : at + size] for at, size in places]
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
    assert assert_tiled(outcome)["reading"]["by"] == "own tiles"
    assert [one.image for one in outcome.tiles] == [one.image for one in good.tiles]


# --- Slides that hang, crash, or may not be read


def test_a_slide_that_hangs(tile, tmp_path):
    """A pipe that nobody writes into; so does a file on a disk that does not answer."""
    path = tmp_path / "s.svs"
    os.mkfifo(path)
    outcome = tile(path, "--stall-minutes", 0.01)
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.state["state"] == "failed"
    assert outcome.state["reason"] == "nothing came of it for 0.01 minutes"
    assert len(outcome.files) == 5
    assert len(outcome.index) == 0


DYING = """
import os, runpy, signal, sys
from gigatile.slides.tiff import TiffLevel
decode = TiffLevel.decode

def die(self, tile, stream):
    if tile == 20:
        os.kill(os.getpid(), getattr(signal, os.environ["BY"]))
    return decode(self, tile, stream)

TiffLevel.decode = die
sys.argv = ["scripts/tile_slide.py", *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_nothing_of_a_copied_slide_stays_when_it_hangs(tile, pyramid, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    plain = tile(pyramid)
    arguments = [str(one).replace("/out/", "/other/") for one in plain.process.args[2:]]
    more = ["--stall-minutes", "0.05", "--copy-first"]
    done = subprocess.run(
        [sys.executable, "-c", DYING, *arguments, *more],
        env=os.environ | {"BY": "SIGSTOP"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "nothing came of it" in done.stdout
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_job_that_is_asked_to_stop_tidies_up(tile, pyramid, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    plain = tile(pyramid)
    arguments = [str(one).replace("/out/", "/other/") for one in plain.process.args[2:]]
    job = subprocess.Popen(
        [sys.executable, "-c", DYING, *arguments, "--copy-first"],
        env=os.environ | {"BY": "SIGSTOP"},
    )
    until = time.monotonic() + 30
    while not list((tmp_path / "other").glob(".S1-*.tfrecord")):
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.5)
    job.terminate()
    assert job.wait(30) == 128 + signal.SIGTERM
    assert list((tmp_path / "scratch").iterdir()) == []
    # What it had half written goes with the next job of the slide.
    again = tile(pyramid, folder="other")
    assert again.files == plain.files


@pytest.mark.parametrize("by", ["SIGSEGV", "SIGSTOP", "SIGKILL", "SIGXCPU"])
def test_a_codec_that_crashes_hangs_or_takes_all_memory(tile, pyramid, tmp_path, by):
    """In the middle of the records; what was half written is gone."""
    plain = tile(pyramid)
    arguments = [str(one).replace("/out/", "/other/") for one in plain.process.args[2:]]
    done = subprocess.run(
        [sys.executable, "-c", DYING, *arguments, "--stall-minutes", "0.05"],
        env=os.environ | {"BY": by},
        capture_output=True,
        text=True,
    )
    other = type(plain)(done, tmp_path / "other")
    if by in ("SIGKILL", "SIGXCPU"):  # not the slide's doing: the job fails, and may be tried again
        assert done.returncode == 2
        assert done.stderr.endswith(f"was ended by {by}; it may need more memory, or time\n")
        assert other.files == []
        return
    assert done.returncode == 0, done.stderr
    reason = {
        "SIGSEGV": "reading it crashed (SIGSEGV)",
        "SIGSTOP": "nothing came of it for 0.05 minutes",
    }
    assert other.state["reason"] == reason[by]
    assert other.state["source"] == plain.state["source"]
    assert other.files == plain.files
    assert (other.folder / "S1.tfrecord").read_bytes() == b""


def test_a_slide_that_may_not_be_read(pyramid, tile, tmp_path, command):
    path = tmp_path / "s.svs"
    shutil.copy(pyramid, path)
    path.chmod(0)
    if os.geteuid() == 0:  # root reads everything unless this is taken from it
        plain = tile(pyramid)
        taken = "--bounding-set=-dac_override,-dac_read_search"
        arguments = [str(one).replace(str(pyramid), str(path)) for one in plain.process.args]
        done = subprocess.run(["setpriv", taken, *arguments], capture_output=True, text=True)
        outcome = type(plain)(done, plain.folder)
    else:
        outcome = tile(path)
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.state["reason"] == "it cannot be opened: Permission denied"


# --- Rules


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A slide of 8 × 4 tiles of 64 px: the first row is tissue, each of the others has a fault."""
    pixels = tissue(256, 512)
    pixels[64:128] = (200, 25, 40)  # red ink
    pixels[128:192] = STAIN  # nothing but one colour
    pixels[192:] = GLASS
    return write_svs(tmp_path_factory.mktemp("faulty") / "s.svs", pixels)


def test_rules_mark_unless_they_are_told_otherwise(faulty, tile):
    outcome = tile(faulty)
    state = assert_tiled(outcome)
    assert state["tiles"]["dropped"] == {"background": 8}
    assert state["tiles"]["marked"]["pen"] == 8
    marks = outcome.index.marks.str.split().to_numpy().reshape(4, 8)
    assert all("pen" in one for one in marks[1]) and not any("pen" in one for one in marks[0])
    assert all("uniform" in one for one in marks[2])
    assert all(one == [] for one in marks[3])  # what is dropped is not marked, too


def test_rules_that_drop(faulty, tile):
    outcome = tile(faulty, pen="drop", uniform="drop", blur="off")
    state = assert_tiled(outcome)
    assert state["tiles"]["dropped"] == {"background": 8, "pen": 8, "uniform": 8}
    assert {one.y for one in outcome.tiles} == {0}
    index = outcome.index
    assert list(index.dropped) == [""] * 8 + ["pen"] * 8 + ["uniform"] * 8 + ["background"] * 8
    # Ink is seen on the overview, so no such tile is read; and its share is told.
    assert index.contrast[index.dropped == "pen"].isna().all()
    assert (index.pen_red[index.dropped == "pen"] > 0.9).all()
    assert (index.contrast[index.dropped == "uniform"] < 1).all()


def test_rules_that_are_off_leave_their_numbers(faulty, tile):
    rules = ("pen", "folds", "blur", "uniform", "clipped", "stripes")
    outcome = tile(faulty, **dict.fromkeys(rules, "off"))
    assert assert_tiled(outcome)["tiles"]["marked"] == {}
    assert outcome.index.contrast.notna().sum() == 24
    assert (outcome.index.marks == "").all()


def test_ink_on_glass_is_background(tile, tmp_path):
    """Black ink has no colour, so it is no tissue; and what is dropped is not marked, nor kept."""
    pixels = tissue(128, 512)
    pixels[64:] = GLASS
    pixels[64:, 128:256] = 25
    outcome = tile(write_svs(tmp_path / "s.svs", pixels))
    state = assert_tiled(outcome)
    assert (outcome.index.pen_black > 0.9).sum() == 2
    assert state["tiles"]["dropped"] == {"background": 8}
    assert "pen" not in state["tiles"]["marked"]


def test_rules_that_drop_everything(faulty, tile):
    state = tile(faulty, pen="drop", uniform="drop", blur="drop", blur_limit=1).state
    assert state["state"] == "failed"
    assert state["reason"] == (
        "none of its 32 tiles is kept; dropped: 8 as background, 8 as pen, 16 as blur"
    )


# --- The pictures


def test_the_mask_shows_the_tissue_over_the_whole_slide(tile, tmp_path):
    pixels = glass(520, 700)
    pixels[:, :384] = tissue(520, 384)
    outcome = tile(write_svs(tmp_path / "s.svs", pixels))
    with (
        Image.open(outcome.folder / "S1.png") as mask,
        Image.open(outcome.folder / "S1.jpg") as low,
    ):
        assert mask.mode == "1"
        assert mask.size == low.size
        shown = np.asarray(mask)
    assert shown[:, : 384 // 4].all()
    assert not shown[:, 384 // 4 :].any()


# --- Tiles as they are


def test_lossless_tiles_are_the_slides_own(pyramid, tile):
    outcome = tile(pyramid, encoding="lossless", size=256)
    state = assert_tiled(outcome)
    assert state["tiles"]["kept"] == 7 * 4
    assert state["settings"]["encoding"] == "lossless"
    handle = openslide.OpenSlide(pyramid)
    for one in outcome.tiles:
        own = handle.read_region((one.x, one.y), 0, (256, 256)).convert("RGB")
        np.testing.assert_array_equal(one.pixels(), np.asarray(own))
        with Image.open(io.BytesIO(one.image)) as picture:
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), np.asarray(own))


@pytest.mark.parametrize("coding", ["rgb", "ycbcr"])
def test_lossless_tiles_keep_their_colours_in_stock_tensorflow(tile, tmp_path, coding):
    import tensorflow as tf

    layout = {"subsampling": (1, 1)} if coding == "rgb" else {"subsampling": (2, 2)}
    path = write_svs(tmp_path / "s.svs", tissue(256, 256), compression="jpeg", **layout)
    for one in tile(path, encoding="lossless").tiles:
        theirs = tf.io.decode_jpeg(one.image, dct_method="INTEGER_ACCURATE").numpy()
        np.testing.assert_array_equal(theirs, one.pixels())


def test_lossless_decodes_nothing_where_no_rule_asks_for_pixels(pyramid, tile, tmp_path):
    pixel_rules = dict.fromkeys(("blur", "uniform", "clipped", "stripes"), "off")
    plain = tile(pyramid, encoding="lossless", size=256, **pixel_rules)
    assert assert_tiled(plain)["tiles"]["kept"] == 28
    assert plain.index.contrast.isna().all()
    program = """
import runpy, sys
from gigatile.slides import choosing, tiff
from gigatile.slides.tiff import TiffLevel
compared = choosing.choose_reading

def choose(*args):
    found = compared(*args)
    TiffLevel.decode = None
    return found

import gigatile.slides.tiling as tiling
tiling.choose_reading = choose
sys.argv = ["scripts/tile_slide.py", *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    arguments = [str(one).replace("/out/", "/other/") for one in plain.process.args[2:]]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "other/S1.tfrecord").read_bytes() == (
        plain.folder / "S1.tfrecord"
    ).read_bytes()


def test_lossless_tiles_of_a_level(tile, tmp_path):
    """Level 1 is exactly four times smaller."""
    pixels = tissue(1024, 1536)
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 4), compression="jpeg")
    outcome = tile(path, encoding="lossless", size=64, mpp=2.0)
    assert assert_tiled(outcome)["grid"]["level"] == 1
    assert len(outcome.tiles) == 24
    handle = openslide.OpenSlide(path)
    for one in outcome.tiles:
        own = handle.read_region((one.x, one.y), 1, (64, 64)).convert("RGB")
        np.testing.assert_array_equal(one.pixels(), np.asarray(own))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"size": 128},
            "its own have 256×256 px, where a tile has 128 px and spans 128×128 px of ",
        ),
        ({"size": 256, "mpp": 0.6}, "where a tile has 256 px and spans 307.2×307.2 px of level 0"),
    ],
)
def test_lossless_refuses_tiles_that_do_not_line_up(pyramid, tile, settings, told):
    state = tile(pyramid, encoding="lossless", **settings).state
    assert state["state"] == "failed"
    assert state["reason"].startswith(
        "tiles.encoding: lossless takes a slide's own JPEG tiles as th"
    )
    assert told in state["reason"]


def test_lossless_refuses_a_slide_without_jpeg_tiles(tile, tmp_path):
    state = tile(write_svs(tmp_path / "s.svs", tissue(128, 128)), encoding="lossless").state
    assert state["reason"].endswith("cannot be read so: its tiles are ADOBE_DEFLATE, not JPEG")


@pytest.mark.parametrize("place", ["first", "before the pixels of some", "behind the end"])
def test_nothing_that_a_scanner_wrote_into_a_tile_leaves_the_slide_with_it(tile, tmp_path, place):
    """A comment in streams of their own, as some scanners write."""
    secret = b"Jane Doe 1950"
    pixels = tissue(128, 128)
    corners = [(0, 0), (0, 64), (64, 0), (64, 64)]
    streams = [
        encode_jpeg(np.ascontiguousarray(pixels[y : y + 64, x : x + 64]), 90) for y, x in corners
    ]
    # The first one is without, so that what is known of its header is not taken for theirs.
    streams[1:] = [_with_comment(stream, secret, place) for stream in streams[1:]]
    path = write_svs(tmp_path / "s.svs", iter(streams), compression="jpeg", shape=(128, 128, 3))
    assert path.read_bytes().count(secret) == 3
    outcome = tile(path, encoding="lossless")
    assert len(outcome.tiles) == 4
    for one, stream in zip(outcome.tiles, streams, strict=True):
        assert secret not in one.image
        np.testing.assert_array_equal(one.pixels(), decode_jpeg(stream))


def _with_comment(stream: bytes, text: bytes, place: str) -> bytes:
    comment = b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text
    at = {
        "first": 2,
        "before the pixels of some": stream.index(b"\xff\xda"),
        "behind the end": len(stream),
    }[place]
    return stream[:at] + comment + stream[at:]


def test_stain_and_lossless_exclude_each_other():
    with pytest.raises(ValueError, match="stain: macenko changes pixels, which encoding: lossless"):
        TileSettings(encoding="lossless", stain="macenko")
