"""The two commands as the workflow calls them."""

import subprocess
import sys
from pathlib import Path

import pytest
from case_runs import add_new_cases
from conftest import add_predictions

SCRIPTS = Path(__file__).parents[2] / "scripts"


def call(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPTS / script, *arguments]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.html"))}


@pytest.mark.parametrize("script", ["write_report.py", "write_prediction_pages.py"])
def test_help_tells_the_arguments(script: str) -> None:
    told = call(script, "--help")
    assert told.returncode == 0
    for option in ("--run-dir", "--slides-table", "--tiles-dir", "--model-dir", "--out"):
        assert option in told.stdout


def test_named_inputs_and_the_run_folder_give_the_same_report(run: Path) -> None:
    done = call("write_report.py", "--run-dir", run, "--out", run / "report")
    assert (done.returncode, done.stderr) == (0, "")
    first = contents(run / "report")
    assert len(first) == 10
    named = {
        "--slides-table": "tiles.tsv",
        "--splits": "splits.json",
        "--shards": "shards/manifest.json",
        "--tiles-dir": "tiles",
        "--model-dir": "model",
        "--evaluation-dir": "evaluation",
        "--out": "report",
    }
    arguments = [part for option, place in named.items() for part in (option, run / place)]
    done = call("write_report.py", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(run / "report") == first


def test_an_input_that_is_not_given_is_asked_for(run: Path) -> None:
    done = call("write_report.py", "--splits", run / "splits.json", "--out", run / "report")
    assert done.returncode == 2
    assert "--run-dir" in done.stderr and "--slides-table" in done.stderr
    assert "--splits" not in done.stderr


def test_a_fault_is_one_message_without_a_traceback(run: Path) -> None:
    (run / "splits.json").write_text("{")
    done = call("write_report.py", "--run-dir", run, "--out", run / "report")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {run / 'splits.json'}: damaged")
    assert "Traceback" not in done.stderr


def test_prediction_pages(run: Path) -> None:
    new = add_predictions(run)
    done = call("write_prediction_pages.py", "--run-dir", run, "--out", new)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(contents(new)) == 10


def test_nothing_imports_tensorflow() -> None:
    code = "import sys, gigatile.report; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("script", ["write_case_report.py", "write_case_prediction_pages.py"])
def test_help_of_the_commands_for_volumes_tells_their_arguments(script: str) -> None:
    told = call(script, "--help")
    assert told.returncode == 0
    for option in ("--run-dir", "--cases-table", "--volumes-dir", "--model-dir", "--out"):
        assert option in told.stdout
    assert "--top-tiles" not in told.stdout


def test_the_commands_for_volumes_write_pages_or_say_why_not(case_run: Path) -> None:
    sheet = case_run.parent / "data/cases.tsv"
    out = case_run / "report"
    arguments = ("--run-dir", case_run, "--samples", sheet, "--out", out)
    done = call("write_case_report.py", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(contents(out)) == {"index.html", *(f"cases/C{n}.html" for n in (4, 5, 6, 7))}
    assert "<h1>Run demo</h1>" in (out / "index.html").read_text()
    add_new_cases(case_run)
    pages = case_run / "predictions/pages"
    done = call("write_case_prediction_pages.py", "--run-dir", case_run, "--out", pages)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(contents(pages)) == {"index.html", "cases/N1.html", "cases/N2.html"}
    (case_run / "evaluation/metrics.json").unlink()
    done = call("write_case_report.py", *arguments)
    assert done.returncode == 2
    assert "metrics.json: no such file" in done.stderr and "Traceback" not in done.stderr
    assert len(contents(out)) == 5
