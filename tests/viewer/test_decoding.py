"""Tiles of the deep zoom are OpenSlide's, and a decoder that fails ends its own process."""

import hashlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openslide
import pytest
from drawn_slides import draw_slide
from openslide.deepzoom import DeepZoomGenerator
from processes import spawned_processes

from gigatile.records.tile import encode_jpeg
from gigatile.viewer import decoding
from gigatile.viewer.decoding import QUALITY, SIDE, SlideProcesses, UnreadableError

STATIC = Path(__file__).resolve().parents[2] / "gigatile/viewer/static"


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    return draw_slide(tmp_path_factory.mktemp("slide") / "drawn.svs", 40, 50, seed=3).path


@pytest.fixture
def processes():
    pool = SlideProcesses(2, 30)
    yield pool
    pool.stop()


def test_tiles_are_those_of_openslide(processes, slide):
    """On all levels, also at the borders."""
    with openslide.OpenSlide(slide) as opened:
        pyramid = DeepZoomGenerator(opened, tile_size=SIDE, overlap=0, limit_bounds=False)
        size = processes.size(slide)
        assert (size.width, size.height) == opened.dimensions
        assert size.levels == pyramid.level_count
        for level, (columns, rows) in enumerate(pyramid.level_tiles):
            for column, row in {(0, 0), (columns - 1, rows - 1), (columns // 2, rows // 2)}:
                pixels = np.asarray(pyramid.get_tile(level, (column, row)).convert("RGB"))
                expected = encode_jpeg(np.ascontiguousarray(pixels), QUALITY)
                assert processes.tile(slide, level, column, row) == expected
            for column, row in ((columns, 0), (0, rows), (-1, 0)):
                with pytest.raises(UnreadableError, match="no such tile"):
                    processes.tile(slide, level, column, row)
    with pytest.raises(UnreadableError, match="no such level"):
        processes.tile(slide, size.levels, 0, 0)


def test_files_that_are_no_slides(processes, slide, tmp_path):
    (tmp_path / "text.svs").write_text("no slide")
    for path in (tmp_path / "text.svs", tmp_path / "none.svs", tmp_path):
        with pytest.raises(UnreadableError, match="cannot be opened"):
            processes.size(path)
    assert processes.size(slide).width


def test_process_that_crashes_is_replaced(processes, slide):
    processes.size(slide)
    processes.size(slide)
    for child in spawned_processes():
        os.kill(child.pid, signal.SIGSEGV)
    time.sleep(0.5)
    failures = 0
    for _ in range(4):
        try:
            assert processes.size(slide).width
        except UnreadableError as error:
            failures += 1
            assert "crashed its decoder" in str(error)
    assert 1 <= failures <= 2


def test_process_that_hangs_is_replaced(slide):
    pool = SlideProcesses(1, 3)
    assert pool.size(slide).width
    (child,) = spawned_processes()
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(UnreadableError, match="took too long"):
        pool.size(slide)
    child.wait(10)
    pool._seconds = 30  # a new process has to start
    assert pool.size(slide).width
    pool.stop()


@pytest.mark.parametrize("answer", ["half", "endless", "nothing"])
def test_process_that_answers_wrongly_is_replaced(slide, answer, monkeypatch):
    """As if a slide had taken over its process."""
    monkeypatch.setattr(decoding, "_answer_all", WRONG[answer])
    pool = SlideProcesses(1, 3)
    begin = time.monotonic()
    with pytest.raises(UnreadableError, match=r"took too long|crashed its decoder"):
        pool.size(slide)
    assert time.monotonic() - begin < 20
    monkeypatch.undo()
    pool._seconds = 30
    assert pool.size(slide).width
    pool.stop()


def half_an_answer(pipe):
    """Announce a long answer, and send the beginning of it."""
    pipe.recv_bytes()
    os.write(pipe.fileno(), (1_000_000).to_bytes(4, "big") + b"a12")
    time.sleep(600)


def endless_answer(pipe):
    pipe.recv_bytes()
    os.write(pipe.fileno(), (2**31 - 1).to_bytes(4, "big") + b"a12")
    time.sleep(600)


def no_answer(pipe):
    pipe.recv_bytes()


WRONG = {"half": half_an_answer, "endless": endless_answer, "nothing": no_answer}


def test_many_requests_at_once(processes, slide):
    """More than processes; none is lost, and each has its own tile."""
    level = processes.size(slide).levels - 1
    positions = [(column, row) for column in range(4) for row in range(3)]
    alone = {position: processes.tile(slide, level, *position) for position in positions}
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda p: processes.tile(slide, level, *p), positions * 3))
    assert together == [alone[position] for position in positions] * 3


def test_vendored_files_are_those_of_the_package():
    """openseadragon 6.1.1 of the npm registry, without the line that names its source map."""
    expected = {
        "LICENSE.txt": "17da96b26ac706d2cbd06d4555dedb43026782f4943faf0156fe7acf89454228",
        "openseadragon.min.js": "4e6fe442742db946dfbe1e748486552078e28ba617412e91b81146443465d2c4",
    }
    folder = STATIC / "openseadragon"
    assert {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()
    } == expected
    assert "openseadragon 6.1.1" in (folder / "openseadragon.min.js").read_text()[:200]
