"""The viewer shows slides in a real store: the tiles of the same file on a disk."""

import contextlib
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import obstore
import pytest
from drawn_slides import draw_slide
from processes import spawned_processes

from gigatile.files import fingerprint
from gigatile.serving.errors import RequestError
from gigatile.stores.addresses import parse_address
from gigatile.viewer.decoding import SlideProcesses, UnreadableError
from gigatile.viewer.shown_slides import ShownSlide


@pytest.fixture(scope="module")
def slide(tmp_path_factory) -> Path:
    return draw_slide(tmp_path_factory.mktemp("slide") / "drawn.svs", 40, 50, seed=3).path


@pytest.fixture
def scratch(tmp_path, monkeypatch) -> Path:
    """Return the temporary folder of the processes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def processes(scratch):
    pool = SlideProcesses(1, 30)
    yield pool
    pool.stop()


def copies_in(scratch: Path) -> list[Path]:
    return [path for path in scratch.rglob("*") if path.is_file()]


def test_tiles_are_those_of_the_file(processes, slide, store, scratch):
    """Only what they need is fetched, and nothing is left at the end."""
    address = parse_address(store.put("viewed/drawn.svs", slide))
    size = processes.size(address)
    assert size == processes.size(slide)
    last = size.levels - 1
    assert processes.tile(address, last, 0, 0) == processes.tile(slide, last, 0, 0)
    (copy,) = copies_in(scratch)
    assert copy.stat().st_blocks * 512 < slide.stat().st_size < copy.stat().st_size + 1
    for level in range(size.levels):
        shrink = 2 ** (last - level)
        columns, rows = (-(-side // (256 * shrink)) for side in (size.width, size.height))
        for cell in {(0, 0), (columns - 1, rows - 1), (columns // 2, rows // 2)}:
            assert processes.tile(address, level, *cell) == processes.tile(slide, level, *cell)
    processes.stop()
    assert copies_in(scratch) == [] == list(scratch.iterdir())


def test_a_killed_process_leaves_no_copy(processes, slide, store, scratch):
    address = parse_address(store.put("viewed/drawn.svs", slide))
    processes.size(address)
    assert copies_in(scratch)
    (child,) = spawned_processes()
    os.kill(child.pid, signal.SIGKILL)
    with contextlib.suppress(UnreadableError):
        processes.size(slide)
    assert copies_in(scratch) == []
    assert processes.size(address) == processes.size(slide)


def test_slides_that_cannot_be_shown(processes, slide, store):
    missing = parse_address("s3://slides/viewed/nothing.svs")
    with pytest.raises(UnreadableError, match="cannot be read from its store: no such object"):
        processes.size(missing)
    text = parse_address(store.put("viewed/text.svs", b"no slide"))
    with pytest.raises(UnreadableError, match="the slide cannot be opened"):
        processes.size(text)
    address = parse_address(store.put("viewed/changed.svs", slide))
    size = processes.size(address)
    store.put("viewed/changed.svs", slide.read_bytes() + b"\0")
    with pytest.raises(UnreadableError, match="changed while it was read"):
        processes.tile(address, size.levels - 1, 3, 3)
    assert processes.size(address) == size


def test_a_store_that_is_away_does_not_hang_the_viewer(scratch, slide, store):
    pool = SlideProcesses(1, 4)
    try:
        address = parse_address(store.put("viewed/away.svs", slide))
        size = pool.size(address)
        store.kill_gateway()
        with pytest.raises(UnreadableError, match=r"took too long|from its store"):
            pool.tile(address, size.levels - 1, 2, 2)
        assert pool.size(slide) == size
    finally:
        store.start_gateway()
        pool.stop()
    assert list(scratch.iterdir()) == []


def test_a_replaced_slide_shows_no_scores(slide, store):
    source = parse_address(store.put("viewed/run.svs", slide))
    known = SimpleNamespace(source=SimpleNamespace(fingerprint=fingerprint(slide)))
    predicted = SimpleNamespace(state=lambda: known)
    shown = ShownSlide("id", "S1", source, predicted, "run", 0, is_immutable=False)
    shown.check_source()
    store.put("viewed/run.svs", slide.read_bytes()[:-1] + b"\0")
    with pytest.raises(RequestError, match="not the one that was predicted"):
        shown.check_source()
    obstore.delete(store.bucket(), "viewed/run.svs")
    with pytest.raises(RequestError, match="the slide's store: no such object"):
        shown.check_source()
