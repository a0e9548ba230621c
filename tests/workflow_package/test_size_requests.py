"""Time and memory that the job of a slide, a case or images requests."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gigatile.provenance.output_records import record_path, write_output_record
from gigatile.provenance.packs import pack_records
from gigatile.stores.addresses import parse_address
from gigatile.workflow.size_requests import LEAST_JOBS, SizeRequests, Work

MAIN = SimpleNamespace(is_main_process=True)
TILING = Work(("tile", "tile_new"), "tiles", 0.3, 2000, mb_in_store=1000, stall_minutes=10)
STORED = parse_address("s3://bucket/slide.svs")


def requests(results: Path, invocation: SimpleNamespace = MAIN, **changes) -> SizeRequests:
    return SizeRequests(invocation, results, replace(TILING, **changes))


def minutes_of(requests: SizeRequests, *files: str | Path, attempt: int = 1) -> int:
    sample = SimpleNamespace(files=tuple(map(Path, files)))
    return requests.minutes({}, {"S1": sample})(("S1",), attempt)


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


def test_time_grows_with_the_files_and_doubles_with_each_attempt(tmp_path):
    asked = requests(tmp_path)
    small, large = (sized(tmp_path, size) for size in (1, 2000))
    assert [minutes_of(asked, *small, attempt=attempt) for attempt in (1, 2, 3)] == [6, 12, 24]
    assert minutes_of(asked, *large) == 25
    assert minutes_of(asked, *large, *small, *large) == 46
    # Of a file in a store, the size is not known.
    assert minutes_of(asked, STORED) == 15
    assert minutes_of(asked, STORED, *large) == 35
    assert minutes_of(asked, tmp_path / "none.svs") == 6


def test_three_attempts_are_enough_for_a_slide_that_stalls(tmp_path):
    for stall in (1, 10, 60):
        asked = requests(tmp_path, stall_minutes=stall)
        assert minutes_of(asked, *sized(tmp_path, 1), attempt=3) > stall


def test_requests_follow_what_earlier_jobs_used(tmp_path):
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_JOBS)
    measured = requests(tmp_path)
    # 5 s per MB, twice as much as a reserve.
    assert minutes_of(measured, *sized(tmp_path, 600)) == 5 + 100
    assert [measured.mem_mb()(None, attempt) for attempt in (1, 2)] == [6500, 13000]
    # The run that was tiled last counts.
    tiled(tmp_path / "two", seconds=5, megabytes=100, peak_mb=200, slides=LEAST_JOBS)
    os.utime(tmp_path / "one/provenance", (1, 1))
    latest = requests(tmp_path)
    assert minutes_of(latest, *sized(tmp_path, 600)) == 6
    assert latest.mem_mb()(None, 1) == 900


def test_jobs_of_another_task_show_nothing(tmp_path):
    """Cases and images are prepared by rules of the same name."""
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_JOBS)
    assert requests(tmp_path).mem_mb()(None, 1) == 6500
    assert requests(tmp_path, folder="volumes").mem_mb()(None, 1) == 2000


def test_few_slides_show_nothing(tmp_path):
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_JOBS - 1)
    assert requests(tmp_path).mem_mb()(None, 1) == 2000
    assert requests(tmp_path, mem_mb=3500).mem_mb()(None, 1) == 3500


@pytest.mark.parametrize("text", ["{", '"0"\t{}\n'])
def test_damaged_records_show_nothing(tmp_path, text):
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_JOBS)
    (tmp_path / "one/provenance/tile.jsonl").write_text(text)
    assert requests(tmp_path).mem_mb()(None, 1) == 2000


def test_processes_of_jobs_read_nothing(tmp_path):
    tiled(tmp_path / "one", seconds=500, megabytes=100, peak_mb=3000, slides=LEAST_JOBS)
    job = requests(tmp_path, SimpleNamespace(is_main_process=False))
    assert job.mem_mb()(None, 1) == 2000
    assert minutes_of(job, *sized(tmp_path, 2000)) == 6
