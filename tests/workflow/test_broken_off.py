"""Killed runs, a full disk, two runs at a time: no incomplete file counts as complete."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clones import Clone

TILES = ("--until", "collect", "--configfile", "small.yaml")
SNAKEMAKE = Path(sys.executable).parent / "snakemake"


def tiles_of(clone: Clone) -> dict[str, bytes]:
    """Return the outputs of tiling, without the records, which contain times."""
    run = clone.folder / "results/small"
    files = [*(run / "tiles").rglob("*"), run / "tiles.tsv"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files if path.is_file()}


def start(clone: Clone, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [SNAKEMAKE, *options],
        cwd=clone.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell starts background commands with SIGINT ignored, and Snakemake would inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met before the time limit"
        time.sleep(0.01)


@pytest.fixture
def fresh(copied_run: Clone) -> Clone:
    """Return a copy without results."""
    shutil.rmtree(copied_run.folder / "results")
    shutil.rmtree(copied_run.folder / ".snakemake")
    return copied_run


@pytest.mark.slow
@pytest.mark.parametrize(
    "seen",
    ["tiles/*.tfrecord", pytest.param("provenance/tile/*.json", marks=pytest.mark.long)],
)
def test_killed_run_resumes(fresh, small_run, seen):
    """Kill the run with all its processes as soon as a file appears."""
    run = fresh.folder / "results/small"
    process = start(fresh, "--cores", "2", *TILES)
    until(lambda: list(run.glob(seen)))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (run / "tiles.tsv").exists()
    fresh.snakemake("--unlock", "--configfile", "small.yaml")
    fresh.snakemake("--cores", "2", *TILES)
    temporary = {name for name in tiles_of(fresh) if Path(name).name.startswith(".")}
    complete = {name: content for name, content in tiles_of(fresh).items() if name not in temporary}
    assert complete == tiles_of(small_run)


def may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="mounting a small disk needs root")
@pytest.mark.parametrize("kilobytes", [pytest.param(500, marks=pytest.mark.long), 1500])
def test_full_disk_leaves_complete_files_only(fresh, small_run, kilobytes):
    """The error message names the cause, and the run resumes.

    A second job could fill what the first one frees, so that its log has no room for the message.
    """
    results, kept = fresh.folder / "results", fresh.folder / "kept"
    results.mkdir()
    done = subprocess.run(
        [
            *("unshare", "--mount", "bash", "-c"),
            f"mount -t tmpfs -o size={kilobytes}k none {results} && "
            f"{SNAKEMAKE} --cores 1 {' '.join(TILES)}; status=$?; cp -a {results} {kept}; "
            "exit $status",
        ],
        cwd=fresh.folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "No space left on device" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    results.rmdir()
    kept.rename(results)
    whole = tiles_of(small_run)
    assert {name: whole.get(name) for name in tiles_of(fresh)} == tiles_of(fresh)
    fresh.snakemake("--cores", "2", *TILES)
    assert tiles_of(fresh) == whole
    assert fresh.jobs(*TILES) == {}


@pytest.mark.long
@pytest.mark.slow
def test_second_run_is_refused(fresh, small_run):
    """The folder is locked by the first; a run with another name may run at the same time."""
    first = start(fresh, "--cores", "1", *TILES)
    until(lambda: list((fresh.folder / "results/small/tiles").glob("*.json")))
    second = fresh.snakemake("--cores", "1", *TILES, check=False)
    assert second.returncode == 1
    assert "Error: Directory cannot be locked" in second.stdout + second.stderr
    other = fresh.folder / "other.yaml"
    other.write_text((fresh.folder / "small.yaml").read_text().replace("small", "other", 1))
    asked = ("--cores", "1", "--until", "split_patients", "--configfile", "other.yaml")
    parallel = fresh.snakemake(*asked, check=False)
    if parallel.returncode and ".snakemake/locks/" in parallel.stdout + parallel.stderr:
        # The first one ended at that moment and removed the folder of locks.
        parallel = fresh.snakemake(*asked)
    assert parallel.returncode == 0, parallel.stdout + parallel.stderr
    printed, _ = first.communicate(timeout=120)
    assert first.returncode == 0, printed
    assert tiles_of(fresh) == tiles_of(small_run)
    assert fresh.jobs(*TILES) == {}
    assert fresh.jobs("--until", "split_patients", "--configfile", "other.yaml") == {}
