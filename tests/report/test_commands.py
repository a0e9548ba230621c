"""The commands that write reports and prediction pages."""

import subprocess
import sys
from pathlib import Path

import pytest
from case_runs import add_new_cases
from slide_runs import add_predictions

SCRIPTS = Path(__file__).parents[2] / "scripts"


def call(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPTS / script, *arguments]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.html"))}


SLIDES = ("--task", "tile_classification")
CASES = ("--task", "volume_segmentation")


@pytest.mark.parametrize("script", ["write_report.py", "write_prediction_pages.py"])
def test_help_lists_the_arguments(script: str) -> None:
    assert call(script, "--help").returncode == 0
    for task in (SLIDES, CASES):
        done = call(script, *task, "--help")
        assert done.returncode == 0
        for option in ("--task", "--run-dir", "--table", "--records-dir", "--model-dir", "--out"):
            assert option in done.stdout
        assert ("--top-tiles" in done.stdout) == (task == SLIDES)


def test_named_inputs_and_the_run_folder_give_the_same_report(run: Path) -> None:
    done = call("write_report.py", *SLIDES, "--run-dir", run, "--out", run / "report")
    assert (done.returncode, done.stderr) == (0, "")
    first = contents(run / "report")
    assert len(first) == 10
    named = {
        "--table": "tiles.tsv",
        "--splits": "splits.json",
        "--shards": "shards/manifest.json",
        "--records-dir": "tiles",
        "--model-dir": "model",
        "--evaluation-dir": "evaluation",
        "--out": "report",
    }
    arguments = [part for option, path in named.items() for part in (option, run / path)]
    done = call("write_report.py", *SLIDES, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(run / "report") == first


def test_missing_inputs_are_named(run: Path) -> None:
    arguments = ("--splits", run / "splits.json", "--out", run / "report")
    done = call("write_report.py", *SLIDES, *arguments)
    assert done.returncode == 2
    assert "--run-dir" in done.stderr and "--table" in done.stderr
    assert "--splits" not in done.stderr


def test_fault_is_one_message_without_traceback(run: Path) -> None:
    (run / "splits.json").write_text("{")
    done = call("write_report.py", *SLIDES, "--run-dir", run, "--out", run / "report")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {run / 'splits.json'}: damaged")
    assert "Traceback" not in done.stderr


def test_prediction_pages(run: Path) -> None:
    new = add_predictions(run)
    done = call("write_prediction_pages.py", *SLIDES, "--run-dir", run, "--out", new)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(contents(new)) == 10


@pytest.mark.parametrize(
    "module",
    [
        "report",
        *(
            f"tasks.{task}.{part}"
            for task in ("tile_classification", "volume_segmentation", "instance_segmentation")
            for part in ("report", "evaluation", "prediction")
        ),
    ],
)
def test_nothing_imports_tensorflow(module: str) -> None:
    code = f"import sys, gigatile.{module}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_pages_of_cases_or_why_not(case_run: Path) -> None:
    sheet = case_run.parent / "data/cases.tsv"
    out = case_run / "report"
    arguments = (*CASES, "--run-dir", case_run, "--samples", sheet, "--out", out)
    done = call("write_report.py", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(contents(out)) == {"index.html", *(f"cases/C{n}.html" for n in (4, 5, 6, 7))}
    assert "<h1>Run demo</h1>" in (out / "index.html").read_text()
    add_new_cases(case_run)
    pages = case_run / "predictions/pages"
    done = call("write_prediction_pages.py", *CASES, "--run-dir", case_run, "--out", pages)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(contents(pages)) == {"index.html", "cases/N1.html", "cases/N2.html"}
    (case_run / "evaluation/metrics.json").unlink()
    done = call("write_report.py", *arguments)
    assert done.returncode == 2
    assert "metrics.json: no such file" in done.stderr and "Traceback" not in done.stderr
    assert len(contents(out)) == 5
