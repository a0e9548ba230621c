"""Edits, and runs that stop at each stage, end with the same results as an undisturbed run."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from clones import Clone
from edits import WITH_TIMES, replaced, started
from test_broken_off import start, until

ASKED = ("--cores", "2", "--configfile", "small.yaml")
RUN = "results/small"


@dataclass(frozen=True)
class Edit:
    """An edit of files, and the places at which the run is then stopped.

    Attributes:
        texts: for each file, a text and its replacement.
        stops: the last rules of each run, or a file: the run receives Ctrl-C when it is written.
        last: the rules that run in the end.
    """

    texts: dict[str, tuple[str, str]]
    stops: Sequence[tuple[str, ...] | str]
    last: set[str]


EDITS = [
    # Changes pictures but no tiles, so the inputs of training do not change.
    Edit(
        {"gigatile/slides/tiling.py": ("OVERVIEW_QUALITY = 80", "OVERVIEW_QUALITY = 20")},
        [("tile",), ("collect", "collect_training")],
        {"report", "all"},
    ),
    Edit(
        {"small.yaml": ("train: {", "shards: {seed: 2}\ntrain: {learning_rate: 0.002, ")},
        [("write_shards",), ("train",), ("choose_model",), ("operating_points",), ("calibration",)],
        {"report", "all"},
    ),
    Edit(
        {
            "small.yaml": ("evaluate: {", "evaluate: {seed: 9, "),
            "gigatile/report/templates/style.css": ("color", "background"),
        },
        ["provenance/evaluate.json"],
        {"calibration", "report", "all"},
    ),
]


def press_ctrl_c_when_written(clone: Clone, file: str) -> None:
    path = clone.folder / RUN / file
    before = path.stat().st_mtime_ns
    process = start(clone, *ASKED)
    until(lambda: path.stat().st_mtime_ns > before)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode != 0, f"the run had already ended\n{printed}"


def contents(clone: Clone) -> dict[str, bytes]:
    run = clone.folder / RUN
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.relative_to(run).parts[0] not in WITH_TIMES
    }


def apply(edit: Edit, clone: Clone) -> None:
    for file, (old, new) in edit.texts.items():
        path = clone.folder / file
        text = path.read_text()
        path.write_text(replaced(old, new)(text))
        assert path.read_text() != text


@pytest.mark.long
@pytest.mark.slow
def test_interrupted_run_gives_the_same_results(small_run, tmp_path):
    stopped, undisturbed = (small_run.copy(tmp_path / name) for name in ("stopped", "undisturbed"))
    for edit in EDITS:
        apply(edit, undisturbed)
    undisturbed.snakemake(*ASKED)
    for edit in EDITS:
        apply(edit, stopped)
        for stop in edit.stops:
            if isinstance(stop, str):
                press_ctrl_c_when_written(stopped, stop)
            else:
                assert set(stop) <= started(stopped.snakemake(*ASKED, "--until", *stop))
        ran = started(stopped.snakemake(*ASKED))
        # A job that receives Ctrl-C between its last file and its end may run again.
        assert edit.last <= ran <= edit.last | {"evaluate"}
        assert ran == edit.last or isinstance(edit.stops[-1], str)
    actual, expected = contents(stopped), contents(undisturbed)
    assert {name for name in actual | expected if actual.get(name) != expected.get(name)} == set()
    assert stopped.jobs("--configfile", "small.yaml") == {}
