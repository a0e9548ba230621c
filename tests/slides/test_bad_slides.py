"""Unusable slides: the command records a state with a reason, and prints no traceback."""

import io
import itertools
import shutil

import numpy as np
import pydicom
import pytest
import tifffile
from format_dicom import write_dicom
from known_slides import STAIN, glass, tiles_of_level_0, tissue, write_svs
from outcomes import assert_tiled
from PIL import Image

from gigatile.slides.index import read_mask
from gigatile.slides.reader import SlideError, open_slide

FILES = ["S1.jpg", "S1.json", "S1.parquet", "S1.tfrecord"]


def assert_failed(outcome, reason: str) -> dict:
    """Check the outputs of a failed slide, and return its state."""
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.process.stderr == ""
    assert outcome.process.stdout == f"S1: {outcome.state['reason']}\n"
    assert outcome.files == FILES
    state = outcome.state
    assert state["state"] == "failed"
    assert reason in state["reason"]
    assert "\n" not in state["reason"]
    assert state["tiles"]["kept"] == 0
    assert (outcome.folder / "S1.tfrecord").read_bytes() == b""
    assert state["records"]["bytes"] == 0
    mask = io.BytesIO(read_mask(outcome.folder / "S1.parquet"))
    for file in (outcome.folder / "S1.jpg", mask):
        with Image.open(file) as picture:
            picture.load()
    assert (outcome.index.dropped != "").sum() == sum(state["tiles"]["dropped"].values())
    return state


def damaged(source, target, start: int, junk: bytes):
    """Copy a file and overwrite the bytes from `start` on with `junk`."""
    data = bytearray(source.read_bytes())
    data[start : start + len(junk)] = junk
    target.write_bytes(data)
    return target


# --- Not a slide


def test_text_file_is_refused(tile, tmp_path):
    path = tmp_path / "s.svs"
    path.write_text("Dear colleague,\nplease find the slides on the disk.\n")
    state = assert_failed(tile(path), "not a slide format that OpenSlide supports (52 bytes)")
    assert state["source"] == {"name": "s.svs"} | dict.fromkeys(list(state["source"])[1:])
    assert state["grid"] is None


def test_empty_file_is_refused(tile, tmp_path):
    path = tmp_path / "s.svs"
    path.touch()
    assert_failed(tile(path), "(0 bytes)")


def test_missing_file_is_refused(tile, tmp_path):
    assert_failed(tile(tmp_path / "gone.svs"), "the file does not exist")


def test_folder_is_refused(tile, tmp_path):
    path = tmp_path / "s.svs"
    path.mkdir()
    assert_failed(tile(path), "it is a folder")


def test_photo_is_refused(tile, tmp_path):
    path = tmp_path / "s.svs"
    Image.fromarray(tissue(200, 200)).save(path, "JPEG")
    assert_failed(tile(path), "not a slide format that OpenSlide supports")


# --- Damaged


def test_tiff_that_openslide_cannot_decode_is_refused(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(128, 128), compression=None)
    data = path.read_bytes()
    with tifffile.TiffFile(path) as tiff:
        tag = tiff.pages[0].tags["Compression"]
    path = damaged(path, tmp_path / "bad.svs", tag.valueoffset, (52479).to_bytes(2, "little"))
    assert len(path.read_bytes()) == len(data)
    assert_failed(tile(path), "it cannot be opened: Unsupported TIFF compression: 52479")


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_truncated_slide_is_refused(tile, tmp_path, pyramid, share):
    path = tmp_path / "s.svs"
    data = pyramid.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert_failed(
        tile(path), f"not a slide format that OpenSlide supports ({int(len(data) * share)} bytes)"
    )


def test_slide_that_fails_on_read_is_refused(tile, tmp_path, pyramid):
    """The overview is read from a higher level, so it succeeds; level 0 fails."""
    path = tmp_path / "s.svs"
    shutil.copy(pyramid, path)
    for offset, length in tiles_of_level_0(pyramid)[::2]:
        damaged(path, path, offset, bytes(length))
    outcome = tile(path)
    state = assert_failed(
        outcome, " of its tiles cannot be read, more than 5% of the 504 with tissu"
    )
    assert state["reason"].startswith("26 of its tiles")
    assert "native tile in column 4, row 0 cannot be read: not a JPEG stream" in state["reason"]
    assert len(state["unreadable"]) == 10
    assert state["source"]["width"] == 1800
    assert state["grid"]["columns"] == 28
    with Image.open(outcome.folder / "S1.jpg") as overview:
        assert overview.size == (450, 300)


def test_unreadable_overview_is_refused(tile, tmp_path, pyramid):
    with tifffile.TiffFile(pyramid) as tiff:
        offset, length = tiff.pages[2].dataoffsets[0], tiff.pages[2].databytecounts[0]
    path = damaged(pyramid, tmp_path / "s.svs", offset, bytes(length))
    outcome = tile(path)
    assert_failed(outcome, "of level 1 at (0, 0) fails")
    with Image.open(outcome.folder / "S1.jpg") as overview:
        assert overview.size == (1, 1)


def test_slide_with_truncated_last_tile_is_refused(tile, tmp_path):
    """The header comes first, so OpenSlide recognises the truncated file."""
    path = write_svs(tmp_path / "s.svs", tissue(640, 640), compression="jpeg")
    offset, _ = tiles_of_level_0(path)[-1]
    path.write_bytes(path.read_bytes()[: offset + 10])
    state = assert_failed(tile(path), "it cannot be opened: ")
    assert "Short read of file s.svs: 10 < " in state["reason"]  # without the folders' names


# --- Other ways to store pixels


@pytest.mark.parametrize("compression", ["APERIO_JP2000_RGB", "APERIO_JP2000_YCBC"])
def test_jpeg_2000_slide_is_tiled(tile, tmp_path, compression):
    pixels = tissue(640, 640)
    stored = pixels
    if compression.endswith("YCBC"):
        stored = np.asarray(Image.fromarray(pixels).convert("YCbCr"))
    path = write_svs(tmp_path / "s.svs", stored, compression=compression)
    outcome = tile(path, quality=100)
    assert_tiled(outcome, kept=100)
    first = outcome.tiles[0]
    assert np.abs(first.pixels().astype(int) - pixels[:64, :64]).mean() < 4


def test_slide_of_damaged_jpeg_2000_tiles_is_refused(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(640, 640), compression="APERIO_JP2000_RGB")
    for offset, length in tiles_of_level_0(path):
        path = damaged(path, tmp_path / "bad.svs", offset, bytes(length))
    assert_failed(tile(path), "it opens, but reading 640×640 px of level 0 at (0, 0) fails: OpenJP")


# --- Intact files that do not fit the settings


def test_slide_smaller_than_a_tile_is_refused(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(63, 500))
    assert_failed(tile(path), "it is smaller than one tile: 500×63 px, but a tile spans 64 px")


def test_unknown_mpp_is_accepted_if_not_required(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(128, 128), mpp=None)
    outcome = tile(path, objectives=[])
    state = assert_tiled(outcome, kept=4)
    assert (state["mpp"], state["mpp_from"], state["grid"]["mpp"]) == (None, None, None)
    assert [record.mpp for record in outcome.tiles] == [None] * 4


def test_unknown_mpp_is_refused_if_required(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(128, 128), mpp=None)
    state = assert_failed(
        tile(path, mpp=0.5, objectives=[]),
        "the file has no mpp (its objective, 20x, is not in tiles.objectives)",
    )
    assert "tiles.mpp = 0.5 requires it; set it in the sheet's column mpp" in state["reason"]
    path = write_svs(tmp_path / "s.svs", tissue(128, 128), mpp=None, power=None)
    assert_failed(tile(path, mpp=0.5), "the file has no mpp (and no objective), but tiles.mpp")


def test_mpp_from_the_sheet_is_used(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(256, 256), mpp=None)
    outcome = tile(path, "--mpp", 0.25, mpp=0.5)
    state = assert_tiled(outcome, kept=4)
    assert (state["mpp"], state["mpp_from"]) == (0.25, "sheet")
    assert {record.extent for record in outcome.tiles} == {128}


def test_mpp_that_is_not_a_number_is_ignored(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(128, 128), mpp="inf")
    state = assert_tiled(tile(path, objectives=[]), kept=4)
    assert state["mpp"] is None
    assert_failed(tile(path, mpp=0.5, objectives=[]), "the file has no mpp")


def test_non_square_pixels_are_refused(tile, tmp_path):
    path = tmp_path / "s.tiff"
    tifffile.imwrite(
        path,
        tissue(128, 128),
        photometric="rgb",
        tile=(64, 64),
        resolution=(20_000, 40_000),
        resolutionunit="CENTIMETER",
        metadata=None,
    )
    state = assert_failed(tile(path), "its pixels are not square: 0.5 by 0.25 µm")
    assert state["source"]["vendor"] == "generic-tiff"
    assert state["source"]["width"] == 128
    # The sheet's mpp overrides the file's.
    state = assert_tiled(tile(path, "--mpp", 0.5), kept=4)
    assert (state["mpp"], state["mpp_from"]) == (0.5, "sheet")


def test_too_coarse_level_0_is_refused(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", tissue(128, 128), mpp=0.5)
    assert_failed(
        tile(path, mpp=0.25), "its level 0 has 0.5 µm per pixel, too coarse for tiles.mpp = 0.25"
    )


# --- Without tissue, or only tissue


def test_slide_without_tissue_is_refused(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", glass(640, 640))
    outcome = tile(path)
    state = assert_failed(
        outcome, "it has no tissue: 0.00 % of it is stained (saturation above 13 of 255)"
    )
    assert state["grid"]["columns"] == 10
    with Image.open(outcome.folder / "S1.jpg") as overview:
        assert overview.size == (160, 160)


def test_slide_without_a_tile_of_enough_tissue_is_refused(tile, tmp_path):
    pixels = glass(640, 640)
    pixels[300:340, 300:340] = STAIN  # a corner of each of four tiles
    path = write_svs(tmp_path / "s.svs", pixels)
    state = assert_failed(
        tile(path), "none of its 100 tiles has at most 50% background; the best has "
    )
    assert state["reason"].endswith("90.2%")
    assert state["tiles"]["dropped"] == {"background": 100}


def test_fluorescence_without_tissue_is_refused(tile, tmp_path):
    path = write_svs(tmp_path / "s.svs", np.full((640, 640, 3), 15, np.uint8))
    state = assert_failed(
        tile(path), "it has no tissue: 0.00 % of it is bright (brightness above 2"
    )
    assert state["tiles"]["dropped"] == {"background": 0}


def test_slide_without_glass_is_tiled(tile, tmp_path):
    """Otsu's threshold alone would classify half of it as background."""
    pixels = tissue(640, 640)
    pixels[:320] = (pixels[:320] * 0.8).astype(np.uint8)
    path = write_svs(tmp_path / "s.svs", pixels)
    assert_tiled(tile(path, max_background=0.01), kept=100)


# --- tiles.on_error: stop


@pytest.mark.parametrize("fault", ["no slide", "fails on a read", "no tissue"])
def test_on_error_stop_prints_one_message_and_writes_nothing(tile, tmp_path, pyramid, fault):
    path = tmp_path / "s.svs"
    if fault == "no slide":
        path.write_text("no slide")
        reason = "not a slide format that OpenSlide supports (8 bytes)"
    elif fault == "no tissue":
        write_svs(path, glass(640, 640))
        reason = "it has no tissue: 0.00 % of it is stained (saturation above 13 of 255)"
    else:
        offset, length = tiles_of_level_0(pyramid)[20]
        damaged(pyramid, path, offset, bytes(length))
        reason = "1 of its tiles cannot be read, more than 0% of the 504 with tissue; at ("
    outcome = tile(path, on_error="stop", max_unreadable=0)
    assert outcome.process.returncode == 2
    assert outcome.process.stdout == ""
    first, second = outcome.process.stderr.splitlines()
    assert first.startswith(f"error: slide S1 ({path}): {reason}")
    assert second == "To continue without such slides, set tiles.on_error: record"
    assert outcome.files == []


# --- The cohort is used without failed slides, unless a label has none left


def test_label_without_usable_slides_stops_the_run(tile, command, tmp_path):
    good = write_svs(tmp_path / "good.svs", tissue(128, 128))
    empty = write_svs(tmp_path / "empty.svs", glass(128, 128))
    states = tmp_path / "states"
    states.mkdir()
    usable, failed = tile(good, folder="good").folder, tile(empty, folder="empty").folder
    rows = ["slide\tpatient\tlabel\tsplit\tpath"]
    for label, split in itertools.product(("luad", "lusc"), ("train", "valid", "test")):
        folder = failed if (label, split) == ("lusc", "valid") else usable
        shutil.copy(folder / "S1.json", states / f"{label}-{split}.json")
        rows.append(f"{label}-{split}\tP {label} {split}\t{label}\t{split}\t{label}-{split}.svs")
    (tmp_path / "samples.tsv").write_text("\n".join(rows) + "\n")
    collected = command(
        *("collect_states.py", "--task", "tile_classification"),
        *("--samples", tmp_path / "samples.tsv", "--settings", "{}", "--states", states),
        *("--out", tmp_path / "tiles.tsv"),
    )
    assert collected.returncode == 2
    assert collected.stderr == (
        f"error: {tmp_path / 'tiles.tsv'}: the cohort cannot be used\n"
        "  - label 'lusc' has no usable slide left in valid; failed:\n"
        "      lusc-valid: it has no tissue: 0.00 % of it is stained (saturation above 13 of 255)\n"
    )


# --- DICOM: the reason says what to do


def without_size(dataset):
    del dataset.TotalPixelMatrixColumns


def part_of_a_concatenation(dataset):
    dataset.ConcatenationUID = "1.2.3"


def other_transfer_syntax(dataset):
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.80"  # JPEG-LS


def other_sop_class(dataset):
    dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"  # CT
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (without_size, "dimensions; its folder has 3 .dcm files: the file does not give the size"),
        (
            part_of_a_concatenation,
            "1.2.3; its folder has 3 .dcm files: files are missing; copy all",
        ),
        (
            other_transfer_syntax,
            "Unsupported transfer syntax 1.2.840.10008.1.2.4.80; its folder has 3 .dcm files: "
            "OpenSlide reads uncompressed pixels, baseline JPEG and JPEG 2000; export the slide ",
        ),
        (
            other_sop_class,
            "it is DICOM, but not a whole-slide image (VL Whole Slide Microscopy), or its header "
            "is truncated; its folder has 3 .dcm files: name a level of the slide in the sheet, "
            "or ",
        ),
    ],
)
def test_refused_dicom_slide_gets_advice(tmp_path, edit, reason):
    path = write_dicom(tmp_path / "slide", tissue(256, 256))
    dataset = pydicom.dcmread(path)
    edit(dataset)
    dataset.save_as(path)
    with pytest.raises(SlideError) as caught, open_slide(path):
        pass
    assert reason in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_other_formats_get_no_dicom_advice(tmp_path):
    path = tmp_path / "s.dcm"
    path.write_bytes(bytes(200))
    with pytest.raises(SlideError) as caught, open_slide(path):
        pass
    assert str(caught.value) == "not a slide format that OpenSlide supports (200 bytes)"
