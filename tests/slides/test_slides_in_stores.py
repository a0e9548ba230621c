"""Slides in a real object store: the same results as from a disk, of the parts that are needed."""

import re
import textwrap

import formats
import numpy as np
import openslide
import pytest
from known_slides import glass, tissue, write_svs
from outcomes import assert_same_bytes, assert_tiled, with_bad_tiles

from gigatile.demo import svs

WHOLE = 1.0


def fetched(outcome) -> float:
    """Return which part of the file was fetched."""
    match = re.search(r"fetched ([\d,]+) of ([\d,]+) bytes", outcome.process.stdout)
    part, whole = (int(number.replace(",", "")) for number in match.groups())
    return part / whole


def both(tile, store, path, *options, **settings):
    """Tile a slide on the disk and in the store; return the outcome of the store."""
    address = store.put(f"{path.parent.name}/{path.name}", path)
    on_disk = tile(path, *options, folder=f"disk-{path.name}", **settings)
    in_store = tile(address, *options, folder=f"store-{path.name}", **settings)
    assert on_disk.process.returncode == in_store.process.returncode == 0
    assert_same_bytes(on_disk, in_store)
    return in_store


def in_a_corner(height, width, side):
    pixels = glass(height, width)
    pixels[64 : 64 + side, 64 : 64 + side] = tissue(side, side)
    return pixels


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({}, 1),
        ({"mpp": 0.8}, 2),
        ({"encoding": "lossless", "size": 256}, 2),
        ({"mpp": 2.0}, 1),
    ],
)
def test_about_the_tissue_is_fetched(tile, store, tmp_path, settings, cores):
    """Level 0 has tissue on 2 % of its area; the coarser levels are read for the mask."""
    path = tmp_path / "s.svs"
    svs.write_svs(path, in_a_corner(3000, 4000, 512), mpp=0.5, objective_power=20)
    outcome = both(tile, store, path, "--cores", cores, **settings)
    assert_tiled(outcome)
    assert fetched(outcome) < 0.5


def test_a_large_slide_is_fetched_in_small_parts(tile, store, tmp_path):
    """Of random pixels, so that glass takes as much of the file as tissue."""
    noise = np.random.default_rng(1).integers(225, 256, (4096, 6144, 3), np.uint8)
    noise[1024:1536, 2048:2560] = tissue(512, 512)
    path = tmp_path / "s.svs"
    svs.write_svs(path, noise, mpp=0.5, objective_power=20)
    outcome = both(tile, store, path)
    assert_tiled(outcome)
    assert fetched(outcome) < 0.25


def jp2k_pyramid(path, pixels):
    """Write a slide that is not read as native tiles."""
    levels = [pixels, pixels[::4, ::4].copy(), pixels[::16, ::16].copy()]
    return write_svs(path, *levels, compression="APERIO_JP2000_RGB", tile=128)


def test_what_openslide_reads_is_fetched_before(tile, store, tmp_path):
    pixels = np.random.default_rng(1).integers(225, 256, (1536, 2048, 3), np.uint8)
    pixels[256:768, 256:768] = tissue(512, 512)
    outcome = both(tile, store, jp2k_pyramid(tmp_path / "s.svs", pixels))
    assert "JPEG" in assert_tiled(outcome)["reading"]["why"]
    assert fetched(outcome) < WHOLE


@pytest.mark.parametrize("noise", [0, 30])
@pytest.mark.parametrize("jp2k", [True, False])
def test_a_wrong_belief_about_what_is_read_costs_time_alone(tile, store, tmp_path, noise, jp2k):
    """Nothing is fetched before OpenSlide reads: then the slide is fetched whole.

    Tiles of flat glass are so short that many lie in a block with TIFF directories.
    """
    patch = (
        "import gigatile.slides.partial_slide as module\n"
        "module.PartialSlide.fetch_region = lambda *arguments: None\n"
        "import gigatile.slides.reader_selection as other\n"
        "def refuse(*arguments):\n    raise other.NotTiled('tried without')\n"
        "other.TiffLevel = refuse\n"
    )
    pixels = in_a_corner(1536, 2048, 512)
    random = np.random.default_rng(1)
    pixels[600:] -= random.integers(0, noise + 1, pixels[600:].shape, np.uint8)
    path = tmp_path / "s.svs"
    if jp2k:
        jp2k_pyramid(path, pixels)
    else:
        svs.write_svs(path, pixels, mpp=0.5, objective_power=20)
    outcome = both(tile, store, path, patch=patch)
    assert_tiled(outcome)
    assert fetched(outcome) == WHOLE


FORMATS = {
    # Of one level: all of it is read for the mask.
    "aperio-jp2k": (write_svs, "s.svs", {"compression": "APERIO_JP2000_RGB"}, True),
    "aperio-lzw": (write_svs, "s.svs", {"compression": "LZW"}, True),
    "generic": (formats.write_generic_tiff, "s.tif", {"mpp": 0.25}, False),
    "generic-classic": (formats.write_generic_tiff, "s.tif", {"mpp": 0.25, "big": False}, False),
    "hamamatsu": (formats.write_hamamatsu, "s.ndpi", {"mpp": 0.25}, True),
    "leica": (formats.write_leica, "s.scn", {"mpp": 0.25}, True),
    "philips": (formats.write_philips, "s.tiff", {"mpp": 0.25}, True),
    "sakura": (formats.write_sakura, "s.svslide", {"mpp": 0.25}, True),
    "trestle": (formats.write_trestle, "s.tif", {"mpp": 0.25}, True),
    "ventana": (formats.write_ventana, "s.bif", {"mpp": 0.25}, True),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_give_the_same_results_as_on_a_disk(tile, store, tmp_path, name):
    """Formats other than tiled TIFF with JPEG are fetched whole."""
    write, file, options, is_whole = FORMATS[name]
    path = write(tmp_path / file, tissue(700, 1000), **options)
    assert openslide.OpenSlide.detect_format(path)
    outcome = both(tile, store, path)
    assert_tiled(outcome)
    assert (fetched(outcome) == WHOLE) == is_whole


def test_real_slides_give_the_same_results_as_on_a_disk(tile, store, shared_data):
    for name in ("cmu-1-small-region.svs", "test3-TRITC-2-560.ndpi"):
        both(tile, store, shared_data / "wsi" / name, size=224)


@pytest.mark.parametrize("which", [[2 * 8 + 3], range(5, 40)])
def test_damaged_slides_give_the_same_results_as_on_a_disk(tile, store, pyramid, tmp_path, which):
    """Some tiles, or too many: what cannot be read is read again from the whole file."""
    path = with_bad_tiles(pyramid, tmp_path / "s.svs", list(which))
    outcome = both(tile, store, path)
    assert fetched(outcome) == WHOLE


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.9])
def test_truncated_slides_give_the_same_results_as_on_a_disk(tile, store, pyramid, tmp_path, share):
    data = pyramid.read_bytes()
    path = tmp_path / "s.svs"
    path.write_bytes(data[: int(share * len(data))])
    both(tile, store, path)


def test_a_missing_object_is_the_fault_of_the_slide(tile, store):
    outcome = tile("s3://slides/none.svs")
    assert outcome.process.returncode == 0
    assert outcome.state["reason"] == (
        "it cannot be read from its store: no such object, or no such bucket"
    )


def test_refused_access_is_no_fault_of_the_slide(tile, store, pyramid, monkeypatch):
    """The job fails and writes nothing, so that it can be tried again."""
    address = store.put("refused.svs", pyramid)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    outcome = tile(address)
    assert outcome.process.returncode == 2 and outcome.files == []
    assert f"{address}: access denied" in outcome.process.stderr
    assert "Traceback" not in outcome.process.stderr


def in_the_middle(code, step="find_tissue"):
    """Return Python code that runs more before a step of the tiling."""
    return (
        textwrap.dedent(
            """
        import gigatile.slides.slide_tiles as module
        go_on = module.STEP
        def after_that(*arguments):
            import subprocess, sys
            subprocess.run([sys.executable, "-c", CODE], check=True)
            return go_on(*arguments)
        module.STEP = after_that
        """
        )
        .replace("CODE", repr(code))
        .replace("STEP", step)
    )


def test_a_slide_that_is_replaced_while_it_is_read_is_not_mixed(tile, store, pyramid, tmp_path):
    address = store.put("replaced.svs", pyramid)
    other = tmp_path / "other.svs"
    svs.write_svs(other, tissue(1200, 1800, seed=2), mpp=0.5, objective_power=20)
    code = f"""
import obstore, pathlib
from obstore.store import S3Store
store = S3Store("slides", client_options={{"allow_http": True}}, endpoint={store.endpoint!r})
obstore.put(store, "replaced.svs", pathlib.Path({str(other)!r}))
"""
    outcome = tile(address, patch=in_the_middle(code))
    # Not recorded as a bad slide: the record would have the fingerprint of the new content.
    assert outcome.process.returncode == 2 and outcome.files == [], outcome.process.stderr
    assert f"{address}: it was changed while it was read" in outcome.process.stderr
    again = tile(address, folder="again")
    assert_same_bytes(tile(other, folder="other"), again, "S1.json")


@pytest.mark.parametrize("step", ["describe_source", "find_tissue"])
def test_a_store_that_goes_away_is_no_fault_of_the_slide(tile, store, pyramid, step):
    address = store.put("away.svs", pyramid)
    patch = (
        "from datetime import timedelta\n"
        "import gigatile.stores.remote_file as remote\nremote.RETRY = timedelta(seconds=2)\n"
    )
    kill = "import os, signal; os.kill(PID, signal.SIGKILL)".replace("PID", str(store.gateway))
    outcome = tile(address, patch=patch + in_the_middle(kill, step))
    store.kill_gateway()
    store.start_gateway()
    assert outcome.process.returncode == 2 and outcome.files == [], outcome.process.stderr
    assert f"{address}: no answer in 2 seconds of tries" in outcome.process.stderr


def test_no_copy_is_left_behind(tile, store, pyramid, tmp_path, monkeypatch):
    """Neither after success nor if the process is killed by SIGTERM."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    address = store.put("left.svs", pyramid)
    assert_tiled(tile(address))
    assert list(scratch.iterdir()) == []
    kill = "import os, signal; os.kill(os.getpgid(0), signal.SIGTERM)"
    outcome = tile(address, folder="killed", patch=in_the_middle(kill), under=("setsid", "-w"))
    assert outcome.process.returncode != 0
    assert list(scratch.iterdir()) == [] and outcome.files == []
