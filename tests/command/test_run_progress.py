"""The progress of a run, from the events of Snakemake."""

import io

import pytest
from rich.console import Console

from gigatile.command.display import Display, TerminalDisplay, display_for
from gigatile.command.progress import Failure, Progress, Stage, duration

STATS = {"tile": 4, "train": 1, "all": 1, "total": 6}


class Clock:
    """A time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(clock):
    """A run of four slides, in which two jobs at the same time were expected to take 10 s each."""
    progress = Progress(lambda counts: {"tile": 10.0, "train": 100.0}, 2, clock)
    assert list(progress.update({"event": "run_info", "stats": STATS})) == []
    return progress


def start(progress, job, rule, **wildcards):
    event = {"event": "job_info", "jobid": job, "rule_name": rule, "wildcards": wildcards}
    return list(progress.update({**event, "log": [f"{rule}.log"]}))


def end(progress, job):
    return list(progress.update({"event": "job_finished", "job_id": job}))


def test_time_left_follows_estimates_and_then_what_was_measured(progress, clock):
    assert progress.seconds_left() == 4 * 10 / 2 + 100
    (tile,) = start(progress, 1, "tile", slide="S1")
    assert isinstance(tile, Stage) and start(progress, 2, "tile", slide="S2") == []
    clock.now = 5
    assert progress.stage_seconds_left(tile) == (40 - 10) / 2
    clock.now = 20
    assert end(progress, 1) == end(progress, 2) == []
    # Each took twice as long as expected, so training is expected to do so, too.
    assert progress.stage_seconds_left(tile) == 20
    assert progress.seconds_left() == 20 + 200
    assert tile.rate(20) == 0.1
    for job in (3, 4):
        start(progress, job, "tile", slide=f"S{job}")
    clock.now = 40
    assert end(progress, 3) == []
    assert end(progress, 4) == [tile] and tile.ended == 40
    assert progress.stage_seconds_left(tile) == 0
    assert progress.counts() == {"tile": 4}


def test_time_left_follows_the_number_of_jobs_that_run(clock):
    """On a cluster of unknown size; the segments of a training follow each other."""
    progress = Progress(lambda counts: {"tile": 10.0, "train": 100.0}, 2, clock)
    list(progress.update({"event": "run_info", "stats": {"tile": 40, "train": 3}}))
    assert progress.seconds_left() == 40 * 10 / 2 + 300
    for job in range(20):
        start(progress, job, "tile", slide=f"S{job}")
    assert progress.seconds_left() == 40 * 10 / 20 + 300


def test_estimates_are_updated_during_a_run(clock):
    expected = {"tile": 100.0, "collect": 1.0, "train": 1000.0}
    progress = Progress(lambda counts: expected, 1, clock)
    list(progress.update({"event": "run_info", "stats": {"tile": 1, "collect": 1, "train": 1}}))
    assert progress.seconds_left() == 1101
    start(progress, 1, "tile")
    clock.now = 4
    end(progress, 1)
    expected |= {"tile": 4.0, "train": 30.0}
    start(progress, 2, "collect")
    clock.now = 5
    end(progress, 2)
    assert progress.seconds_left() == 30


def test_estimates_are_not_updated_after_every_job(clock):
    """An update reads the sheet: a run of 30,000 slides has some 15 for each stage."""
    calls = []
    progress = Progress(lambda counts: calls.append(counts) or {}, 1, clock)
    list(progress.update({"event": "run_info", "stats": {"tile": 1000}}))
    for job in range(1000):
        start(progress, job, "tile")
        end(progress, job)
    assert len(calls) == 1 + 10 + 1


def test_a_job_that_is_run_again_after_a_failure_counts_once(progress, clock, tmp_path):
    log = tmp_path / "tile.log"
    log.write_text("starting\nerror: S1.svs: not a slide\nTraceback\n")
    start(progress, 1, "tile", slide="S1")
    (failure,) = progress.update(
        {"event": "job_error", "jobid": 1, "rule_name": "tile", "log": [str(log)]}
    )
    assert failure == Failure("tile", ("S1",), (str(log),))
    assert failure.reason() == "error: S1.svs: not a slide"
    start(progress, 1, "tile", slide="S1")
    end(progress, 1)
    assert progress.counts() == {"tile": 1} and progress.stages["tile"].failed == 0


def test_a_second_table_of_jobs_does_not_reset_the_progress(progress):
    """Snakemake prints it again after a checkpoint, and at the end of a dry run."""
    start(progress, 1, "tile")
    end(progress, 1)
    list(progress.update({"event": "run_info", "stats": STATS}))
    assert progress.stages["tile"].done == 1


def test_failure_without_a_log_has_a_reason():
    assert Failure("train", (), ("/no/such.log",)).reason() == "it left no message"


def test_plain_lines_and_terminal(progress, clock):
    plain = Console(file=io.StringIO(), width=200)
    display = display_for(progress, plain)
    assert type(display) is Display
    event = {"event": "job_info", "jobid": 1, "rule_name": "train", "wildcards": {}, "log": []}
    display.update(event)
    display.update({"event": "job_finished", "job_id": 1})
    lines = plain.file.getvalue().splitlines()
    assert lines[0].startswith("train: 0 of 1, about 1 min 40 s left, run: about ")
    assert lines[1] == "train: 1 of 1, took 0 s"
    terminal = Console(file=io.StringIO(), width=100, force_terminal=True)
    display = display_for(progress, terminal)
    assert isinstance(display, TerminalDisplay)
    terminal.print(display.render())
    assert "left for the run" in terminal.file.getvalue()
    assert "0/4" in terminal.file.getvalue()


def test_narrow_terminal_shows_each_stage_in_one_line(progress):
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    console.print(TerminalDisplay(progress, console).render())
    assert len(console.file.getvalue().splitlines()) == 3


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (61, "1 min 01 s"), (3 * 3600 + 125, "3 h 02 min")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
