"""Tiles of a slide: independent of reader and number of cores, filtered by the rules."""

import io

import numpy as np
import pytest
from known_slides import GLASS, STAIN, glass, tissue, write_svs
from outcomes import assert_same_bytes, assert_tiled
from PIL import Image

from gigatile.slides.index import read_mask

# --- Both readers give the same tiles


def test_both_readers_give_the_same_records(pyramid, tile):
    native = tile(pyramid, folder="native")
    assert assert_tiled(native)["reading"] == {"by": "native tiles", "why": None, "compared": 4}
    # OpenSlide reads all formats that are not listed.
    patch = """
from gigatile.slides import tiff
tiff.FORMATS = ()
"""
    openslide = tile(pyramid, folder="openslide", patch=patch)
    assert assert_tiled(openslide)["reading"]["by"] == "openslide"
    assert_same_bytes(native, openslide, "S1.json")


def test_different_native_pixels_select_openslide(tile, pyramid):
    """The file's tiles are YCbCr; the patch decodes native tiles as RGB."""
    patch = """
from gigatile.slides import jpeg, tiff
right = tiff.jpeg_header
tiff.jpeg_header = lambda tables, ycbcr: right(tables, not ycbcr)
"""
    plain, other = tile(pyramid), tile(pyramid, folder="other", patch=patch)
    assert assert_tiled(other)["reading"]["by"] == "openslide"
    assert "native tiles differ from OpenSlide's pixels by up to " in other.state["reading"]["why"]
    assert_same_bytes(plain, other, "S1.json")


@pytest.mark.parametrize("settings", [{}, {"mpp": 0.8}, {"mpp": 2.0}, {"stain": "reinhard"}])
def test_any_number_of_cores_gives_the_same_bytes(pyramid, tile, settings):
    single = tile(pyramid, folder="one", **settings)
    three = tile(pyramid, "--cores", 3, folder="three", **settings)
    assert_tiled(three)
    assert_same_bytes(single, three)


def test_cores_do_not_change_openslides_result(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(640, 640), compression="APERIO_JP2000_RGB")
    single, three = tile(path, folder="one"), tile(path, "--cores", 3, folder="three")
    assert assert_tiled(three)["reading"]["why"] == "its tiles are APERIO_JP2000_RGB, not JPEG"
    assert_same_bytes(single, three)


def test_copied_slide_gives_the_same_files(pyramid, tile, tmp_path, monkeypatch):
    plain = tile(pyramid, folder="plain")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    patch = """
from gigatile.slides import opening
opened = opening.open_slide
opening.open_slide = lambda path: print(path, flush=True) or opened(path)
"""
    copied = tile(pyramid, "--copy-first", folder="copied", patch=patch)
    assert_tiled(copied)
    assert copied.process.stdout.startswith(str(tmp_path / "scratch"))
    assert_same_bytes(plain, copied)
    assert list((tmp_path / "scratch").iterdir()) == []


# --- Rules


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A slide of 8 × 4 tiles of 64 px: the first row is tissue, each other row has a fault."""
    pixels = tissue(256, 512)
    pixels[64:128] = (200, 25, 40)  # red ink
    pixels[128:192] = STAIN  # a single colour
    pixels[192:] = GLASS
    return write_svs(tmp_path_factory.mktemp("faulty") / "s.svs", pixels)


def test_rules_mark_by_default(faulty, tile):
    outcome = tile(faulty)
    state = assert_tiled(outcome)
    assert state["tiles"]["dropped"] == {"background": 8}
    assert state["tiles"]["marked"]["pen"] == 8
    marks = outcome.index.marks.str.split().to_numpy().reshape(4, 8)
    assert all("pen" in tile_marks for tile_marks in marks[1]) and not any(
        "pen" in tile_marks for tile_marks in marks[0]
    )
    assert all("uniform" in tile_marks for tile_marks in marks[2])
    assert all(tile_marks == [] for tile_marks in marks[3])  # dropped tiles are not marked


def test_dropping_rules_leave_tiles_out(faulty, tile):
    outcome = tile(faulty, pen="drop", uniform="drop", blur="off")
    state = assert_tiled(outcome)
    assert state["tiles"]["dropped"] == {"background": 8, "pen": 8, "uniform": 8}
    assert {record.y for record in outcome.tiles} == {0}
    index = outcome.index
    assert list(index.dropped) == [""] * 8 + ["pen"] * 8 + ["uniform"] * 8 + ["background"] * 8
    # Ink is measured on the overview, so these tiles are not read; the index has the fraction.
    assert index.contrast[index.dropped == "pen"].isna().all()
    assert (index.pen_red[index.dropped == "pen"] > 0.9).all()
    assert (index.contrast[index.dropped == "uniform"] < 1).all()


def test_rules_that_are_off_still_measure(faulty, tile):
    rules = ("pen", "folds", "blur", "uniform", "clipped", "stripes")
    outcome = tile(faulty, **dict.fromkeys(rules, "off"))
    assert assert_tiled(outcome)["tiles"]["marked"] == {}
    assert outcome.index.contrast.notna().sum() == 24
    assert (outcome.index.marks == "").all()


def test_ink_on_glass_is_background(tile, tmp_path):
    """Black ink is not saturated, so it is not tissue; dropped tiles are not marked."""
    pixels = tissue(128, 512)
    pixels[64:] = GLASS
    pixels[64:, 128:256] = 25
    outcome = tile(write_svs(tmp_path / "s.svs", pixels))
    state = assert_tiled(outcome)
    assert (outcome.index.pen_black > 0.9).sum() == 2
    assert state["tiles"]["dropped"] == {"background": 8}
    assert "pen" not in state["tiles"]["marked"]


def test_rules_that_drop_all_tiles_refuse_the_slide(faulty, tile):
    state = tile(faulty, pen="drop", uniform="drop", blur="drop", blur_limit=1).state
    assert state["state"] == "failed"
    assert state["reason"] == (
        "none of its 32 tiles is kept; dropped: 8 as background, 8 as pen, 16 as blur"
    )


# --- Pictures


def test_mask_shows_the_tissue(tile, tmp_path):
    pixels = glass(520, 700)
    pixels[:, :384] = tissue(520, 384)
    outcome = tile(write_svs(tmp_path / "s.svs", pixels))
    with (
        Image.open(io.BytesIO(read_mask(outcome.folder / "S1.parquet"))) as mask,
        Image.open(outcome.folder / "S1.jpg") as low,
    ):
        assert mask.mode == "1"
        assert mask.size == low.size
        tissue_mask = np.asarray(mask)
    assert tissue_mask[:, : 384 // 4].all()
    assert not tissue_mask[:, 384 // 4 :].any()
