"""The files that a slide consists of."""

import os
import shutil

import formats
import numpy as np
import openslide
import pytest
from known_slides import tissue, write_svs

from gigatile.files import fingerprint
from gigatile.slides import slide_files
from gigatile.slides.slide_files import copy_to, files_of, fingerprint_of, size_and_time_of

PIXELS = tissue(512, 640)


@pytest.fixture(params=["svs", "mirax", "dicom"])
def slide(request, tmp_path):
    """A slide that is a single file, a file with a folder, or a folder of files."""
    folder = tmp_path / "slides"
    folder.mkdir()
    if request.param == "svs":
        return write_svs(folder / "s.svs", PIXELS)
    if request.param == "mirax":
        return formats.write_mirax(folder / "s.mrxs", PIXELS)
    return formats.write_dicom(folder / "s", PIXELS)


def test_fingerprint_of_a_single_file(tmp_path):
    path = write_svs(tmp_path / "s.svs", PIXELS)
    write_svs(tmp_path / "other.svs", PIXELS)
    assert files_of(path) == [path]
    assert fingerprint_of(path) == fingerprint(path)
    stat = path.stat()
    assert size_and_time_of(path) == (stat.st_size, stat.st_mtime_ns)


def test_fingerprint_includes_all_files(slide):
    files = files_of(slide)
    root = slide.parent
    assert set(files) == {path for path in root.rglob("*") if path.is_file()}
    fingerprints = {fingerprint_of(slide)}
    size, times = size_and_time_of(slide)
    assert size == sum(path.stat().st_size for path in files)
    for number, path in enumerate(files, 1):
        content = path.read_bytes()
        before = path.stat().st_mtime_ns
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        older = before - number * 10**9
        os.utime(path, ns=(older, older))
        fingerprints.add(fingerprint_of(slide))
        same_size, current = size_and_time_of(slide)
        # Replacing a file by an older file is detected, too.
        assert same_size == size and current != times
        times = current
    assert len(fingerprints) == 1 + len(files)


def test_fingerprint_does_not_depend_on_the_folder(slide, tmp_path):
    shutil.copytree(slide.parent, tmp_path / "elsewhere")
    assert fingerprint_of(tmp_path / "elsewhere" / slide.name) == fingerprint_of(slide)


def test_copy_equals_the_slide_and_reports_progress(slide, tmp_path, monkeypatch):
    with openslide.OpenSlide(slide) as handle:
        pixels = np.asarray(handle.read_region((0, 0), 0, (512, 512)))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(slide_files, "CHUNK_BYTES", 10_000)
    calls = []
    copy = copy_to(slide, tmp_path / "scratch", lambda: calls.append(1))
    assert copy.parent == tmp_path / "scratch"
    assert len(calls) >= size_and_time_of(slide)[0] / 10_000
    shutil.move(slide.parent, tmp_path / "gone")
    with openslide.OpenSlide(copy) as handle:
        assert np.array_equal(np.asarray(handle.read_region((0, 0), 0, (512, 512))), pixels)
