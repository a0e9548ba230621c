"""Time and memory that the job of a slide requests."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gigatile.provenance.output_records import record_path, write_output_record
from gigatile.provenance.packs import pack_records
from gigatile.settings.tiles import TileSettings
from gigatile.workflow.tiling_requests import LEAST_SLIDES, TilingRequests

MAIN = SimpleNamespace(is_main_process=True)


def requests(results: Path, **settings) -> TilingRequests:
    return TilingRequests(MAIN, results, TileSettings(**settings))


def sized(folder: Path, megabytes: float) -> list[str]:
    path = folder / f"{megabytes}.svs"
    with path.open("wb") as handle:
        handle.truncate(int(megabytes * 1e6))
    return [str(path)]


def tiled(run: Path, seconds: float, megabytes: float, peak_mb: int, slides: int) -> None:
    """Record slides as tiled."""
    (run / "tiles").mkdir(parents=True)
    (source,) = sized(run, megabytes)
    for number in range(slides):
        output = run / f"tiles/{number}.tfrecord"
        output.touch()
        record = record_path(run, "tile", str(number))
        write_output_record(record, [output], [Path(source)], seconds=seconds, peak_mb=peak_mb)
    pack_records(run / "provenance/tile", [str(number) for number in range(slides)])


def test_time_grows_with_the_slide_and_doubles_with_each_attempt(tmp_path):
    minutes = requests(tmp_path).minutes()
    small, large = (sized(tmp_path, size) for size in (1, 2000))
    assert [minutes(None, small, attempt) for attempt in (1, 2, 3)] == [6, 12, 24]
    assert minutes(None, large, 1) == 25
    # Of a slide in a store, the size is not known.
    assert minutes(None, [], 1) == 15
    assert minutes(None, [str(tmp_path / "none.svs")], 1) == 6


def test_three_attempts_are_enough_for_a_slide_that_stalls(tmp_path):
    for stall in (1, 10, 60):
        minutes = requests(tmp_path, stall_minutes=stall).minutes()
        assert minutes(None, sized(tmp_path, 1), 3) > stall


def test_requests_follow_what_earlier_jobs_used(tmp_path):
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_SLIDES)
    measured = requests(tmp_path)
    # 5 s per MB, twice as much as a reserve.
    assert measured.minutes()(None, sized(tmp_path, 600), 1) == 5 + 100
    assert [measured.mem_mb()(None, attempt) for attempt in (1, 2)] == [6500, 13000]
    # The run that was tiled last counts.
    tiled(tmp_path / "two", seconds=5, megabytes=100, peak_mb=200, slides=LEAST_SLIDES)
    os.utime(tmp_path / "one/provenance", (1, 1))
    latest = requests(tmp_path)
    assert latest.minutes()(None, sized(tmp_path, 600), 1) == 6
    assert latest.mem_mb()(None, 1) == 900


def test_few_slides_show_nothing(tmp_path):
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_SLIDES - 1)
    assert requests(tmp_path).mem_mb()(None, 1) == 2000
    assert requests(tmp_path, cores=4).mem_mb()(None, 1) == 3500


@pytest.mark.parametrize("text", ["{", '"0"\t{}\n'])
def test_damaged_records_show_nothing(tmp_path, text):
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_SLIDES)
    (tmp_path / "one/provenance/tile.jsonl").write_text(text)
    assert requests(tmp_path).mem_mb()(None, 1) == 2000


def test_processes_of_jobs_read_nothing(tmp_path):
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_SLIDES)
    job = TilingRequests(SimpleNamespace(is_main_process=False), tmp_path, TileSettings())
    assert job.mem_mb()(None, 1) == 2000
    assert job.minutes()(None, [str(tmp_path / "none.svs")], 1) == 6
