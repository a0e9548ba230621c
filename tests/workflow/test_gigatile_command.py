"""The command `gigatile`, as a user calls it: from any folder, with every mistake on the way."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import psutil
import pytest
from small_cohort import small_settings


def lines_of(done) -> dict[str, str]:
    """Return the lines of the summary of a run by their first word."""
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


@pytest.fixture
def folder(small_cohort, tmp_path):
    """A folder outside the project with a configuration and the slides of the small cohort."""
    folder = tmp_path / "my study"
    folder.mkdir()
    (folder / "cohort").symlink_to(small_cohort.folder / "cohort")
    (folder / "config.yaml").write_text(small_settings())
    return folder


@pytest.mark.long
def test_run_in_another_folder(small_cohort, folder):
    """Paths and results are relative to the folder of the configuration, and may contain spaces."""
    (folder / "random.py").write_text("raise SystemExit('a file of the user is imported')")
    elsewhere = sorted(small_cohort.folder.glob("results/**/*"))
    state, text = "results/small/tiles/P01-1.json", "results/small/tiles/text.json"
    done = small_cohort.run("gigatile", "run", str(folder), "--", state, text)
    assert json.loads((folder / state).read_text())["tiles"]
    assert sorted(small_cohort.folder.glob("results/**/*")) == elsewhere
    assert "tile: 2 of 2, " in done.stderr
    assert "Building DAG" not in done.stdout + done.stderr
    assert lines_of(done)["ran"].startswith("tile 2 in ")
    (log,) = (folder / ".snakemake/log").glob("*.gigatile.log")
    assert "Building DAG" in log.read_text()
    assert lines_of(done)["log"] == str(log)
    again = small_cohort.run("gigatile", "run", str(folder), "--", state)
    assert lines_of(again)["ran"] == "nothing: all results are up to date"


def test_summary_has_the_figure_of_the_report(copied_run):
    done = copied_run.run("gigatile", "run", "small.yaml")
    lines = lines_of(done)
    auc = json.loads((copied_run.folder / "results/small/evaluation/metrics.json").read_text())
    auc = auc["slide"]["roc_auc"]["macro"]
    assert lines["result"].startswith(f"ROC AUC by slide {auc['value']:.3f} (")
    assert lines["left"].startswith("out  3 of 12 slides: ")
    report = copied_run.folder / "results/small/report/index.html"
    assert lines["report"] == str(report) and len(done.stdout.splitlines()) == 6
    assert copied_run.run("gigatile", "report", "--path", "small.yaml").stdout == f"{report}\n"
    verified = copied_run.run("gigatile", "verify", "small.yaml").stdout
    assert verified == "results/small: all files are current and undamaged, and none is left over\n"
    assert copied_run.run("gigatile", "run", "-n", "small.yaml").stdout.startswith("nothing to do")
    report.write_text("edited")
    damaged = copied_run.run("gigatile", "verify", "small.yaml", check=False)
    assert damaged.returncode != 0 and "report/index.html" in damaged.stdout + damaged.stderr


MISTAKES = {
    "no such file": (["run", "nope.yaml"], "/nope.yaml: no such configuration"),
    "no such folder": (["run", "nope"], "nope: no such configuration"),
    "not YAML": (["run", "bad.yaml"], "bad.yaml: not YAML in UTF-8"),
    "unknown setting": (["run", "-n", "unknown.yaml"], "tiels"),
    "no sheet": (["run", "-n", "no_sheet.yaml"], "none.tsv: no such sample sheet"),
    "no sheet, run": (["run", "no_sheet.yaml"], "none.tsv: no such sample sheet"),
    "too few patients": (["run", "-n", "few.yaml"], "few.tsv: "),
    "unknown option": (["run", "--", "--nonsense"], "unrecognized arguments: --nonsense"),
    "unknown target": (["run", "--", "nonsense"], "nonsense"),
    "no core": (["run", "--cores", "0"], "error: --cores 0: no job could start"),
    "no job": (["run", "--", "--jobs", "0"], "no job could start; must be at least 1"),
    "no such column": (["run", "-n", "groups.yaml"], "samples.tsv has no column 'sex'"),
    "unknown slide": (
        ["run", "--", "results/small/tiles/nope.json"],
        "error: the sample sheet has no row 'nope'\n",
    ),
    "no report": (["report"], "no report yet; `gigatile run "),
    "no new sheet": (["predict", ".", "none.tsv"], "none.tsv: no such sheet"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_message(small_cohort, folder, name):
    """No traceback, and no line of the Snakefile."""
    arguments, message = MISTAKES[name]
    for file, text in {
        "bad.yaml": "a: [",
        "unknown.yaml": small_settings() + "tiels: {size: 3}\n",
        "no_sheet.yaml": "run: x\nsamples: none.tsv\n",
        "groups.yaml": small_settings() + "report: {group_by: [sex]}\n",
        "few.yaml": "run: few\nsamples: few.tsv\n",
        "few.tsv": "slide\tpatient\tlabel\tpath\n"
        "A\tP1\tx\tcohort/P01-1.svs\nB\tP2\ty\tcohort/P02-1.svs\n",
    }.items():
        (folder / file).write_text(text)
    program = [sys.executable, "-m", "gigatile", *arguments]
    done = subprocess.run(
        program,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(small_cohort.folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0 and done.stderr.startswith("error: ")
    assert message in done.stderr
    for word in ("Traceback", 'File "', ".smk", "WorkflowError"):
        assert word not in done.stdout + done.stderr


def test_failed_job_is_shown_with_its_reason_and_log(small_cohort, folder):
    """A bad slide is no failure; a results folder that is a file is one."""
    run = folder / "results/small"
    run.mkdir(parents=True)
    (run / "tiles").write_text("in the way")
    target = "results/small/tiles/P01-1.json"
    done = small_cohort.run("gigatile", "run", str(folder), "--", target, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    assert "full log: " in done.stderr or done.stderr.startswith("error: ")


def test_run_in_a_terminal_shows_bars_and_ends_with_the_summary(small_cohort, folder):
    """Narrow and low: 12 lines of 60 characters."""
    terminal, inner = os.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 12, 60, 0, 0))
    program = [sys.executable, "-m", "gigatile", "run", "--", "results/small/tiles/P01-1.json"]
    env = os.environ | {"PYTHONPATH": str(small_cohort.folder), "TERM": "xterm"}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), inner)
    with subprocess.Popen(program, cwd=folder, env=env, **streams) as process:
        os.close(inner)
        shown = b""
        try:
            while part := os.read(terminal, 65536):
                shown += part
        except OSError:  # Linux reports the end of a terminal as an error
            assert process.wait(60) == 0, shown.decode()
    os.close(terminal)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "planning …" in plain and "left for the run" in plain
    assert re.search(r"tile +━+ +1/1 +took \d+ s", plain)
    summary = plain.splitlines()[-6:]
    assert [line.split()[0] for line in summary] == [
        "ran",
        "left",
        "result",
        "report",
        "log",
        "next",
    ]
    assert "Building DAG" not in plain and shown.endswith(b"checks every file\r\n")


def test_sigterm_ends_the_jobs(small_cohort, folder):
    program = [sys.executable, "-m", "gigatile", "run", "--", "results/small/tiles/P01-1.json"]
    with subprocess.Popen(
        program, cwd=folder, env=os.environ | {"PYTHONPATH": str(small_cohort.folder)}
    ) as process:
        deadline = time.monotonic() + 60
        while not list(folder.glob(".snakemake/locks/*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) != 0
    small_cohort.run("gigatile", "run", str(folder), "--", "--unlock")
    small_cohort.run("gigatile", "run", str(folder), "--", "results/small/tiles/P01-1.json")


def test_killed_snakemake_and_its_lock_are_named(small_cohort, folder):
    command = [sys.executable, "-m", "gigatile", "run", "--", "results/small/tiles/P01-1.json"]
    given = {"cwd": folder, "env": os.environ | {"PYTHONPATH": str(small_cohort.folder)}}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **given) as process:
        deadline = time.monotonic() + 60
        while not list(folder.glob(".snakemake/locks/*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        (snakemake,) = psutil.Process(process.pid).children()
        snakemake.kill()
        printed = process.communicate(timeout=60)[1]
    assert process.returncode != 0 and "Traceback" not in printed
    assert "Snakemake was ended by SIGKILL" in printed
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, **given)
    assert again.stderr == (
        f"error: {folder}: another run is using this folder, or one was killed. If no other run "
        "uses it, unlock it: gigatile run DIR -- --unlock\n"
    )
    small_cohort.run("gigatile", "run", str(folder), "--", "--unlock")


def test_dry_run_of_many_slides_fits_a_screen(small_cohort, folder):
    sheet = ["slide\tpatient\tlabel\tpath"]
    (folder / "many").mkdir()
    for number in range(1000):
        (folder / f"many/S{number}.svs").write_text(f"slide {number}")
        sheet.append(f"S{number}\tP{number}\t{'ab'[number % 2]}\tmany/S{number}.svs")
    (folder / "many.tsv").write_text("\n".join(sheet) + "\n")
    (folder / "config.yaml").write_text("run: many\nsamples: many.tsv\n")
    done = small_cohort.run("gigatile", "run", "-n", str(folder), check=False)
    printed = done.stdout.splitlines()
    assert "tile 1,000 jobs" in " ".join(done.stdout.split()), done.stderr
    assert len(printed) <= 20 and "1,0" in printed[-1]


def test_names_of_the_sheet_are_no_wildcards(small_cohort, folder):
    """A column and a label with a name in braces, or with characters that a shell expands."""
    head, *rows = (folder / "cohort/samples.tsv").read_text().splitlines()
    column, label = "{a} $(touch x)", "{slide} *"
    lines = [f"{head}\t{column}", *(f"{row}\tb" for row in rows)]
    text = "\n".join(lines).replace("\tluad\t", f"\t{label}\t")
    paths = re.sub(r"\t(\w+-?\d?\.svs)\t", r"\tcohort/\1\t", text)
    (folder / "named.tsv").write_text(paths + "\n")
    settings = small_settings().replace("cohort/samples.tsv", "named.tsv")
    settings = settings.replace("train: {", f"train: {{boost: {{'{label}': 2.0}}, ")
    (folder / "config.yaml").write_text(f"{settings}report: {{group_by: ['{column}']}}\n")
    done = small_cohort.run("gigatile", "run", "-n", str(folder))
    assert "train                    1 job" in done.stdout
    assert not (folder / "x").exists()


@pytest.mark.long
def test_slides_of_new_patients_are_predicted(copied_run):
    (copied_run.folder / "new.tsv").write_text("slide\tpath\nN1\tcohort/P10-1.svs\n")
    done = copied_run.run("gigatile", "predict", "small.yaml", "new.tsv")
    assert "predict 1" in lines_of(done)["ran"]
    pages = copied_run.folder / "results/small/predictions/pages/index.html"
    assert lines_of(done)["report"] == str(pages) and pages.is_file()
