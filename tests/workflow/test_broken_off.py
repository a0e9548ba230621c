"""Runs broken off, a disk that is full, two at a time: nothing half-made is taken for whole."""

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


def made(clone: Clone) -> dict[str, bytes]:
    """Return what tiling has left, but for the notes, which have times."""
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
    )


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.01)


@pytest.fixture
def begun(copied_run: Clone) -> Clone:
    """Return a copy in which nothing is made."""
    shutil.rmtree(copied_run.folder / "results")
    shutil.rmtree(copied_run.folder / ".snakemake")
    return copied_run


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["tiles/*.tfrecord", "provenance/tile/*.json"])
def test_a_killed_run_goes_on(begun, small_run, seen):
    """Killed with all that it has started, at the first sight of a file."""
    run = begun.folder / "results/small"
    process = start(begun, "--cores", "2", *TILES)
    until(lambda: list(run.glob(seen)))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (run / "tiles.tsv").exists()
    begun.snakemake("--unlock", "--configfile", "small.yaml")
    begun.snakemake("--cores", "2", *TILES)
    temporary = {name for name in made(begun) if Path(name).name.startswith(".")}
    found = {name: content for name, content in made(begun).items() if name not in temporary}
    assert found == made(small_run)


def may_mount() -> bool:
    asked = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(asked).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="mounting a small disk needs root")
@pytest.mark.parametrize("kilobytes", [1000, 4000])
def test_a_full_disk(begun, small_run, kilobytes):
    """Whole files alone are left on it, a message names what was being written, and it goes on."""
    results, kept = begun.folder / "results", begun.folder / "kept"
    results.mkdir()
    done = subprocess.run(
        [
            *("unshare", "--mount", "bash", "-c"),
            f"mount -t tmpfs -o size={kilobytes}k none {results} && "
            f"{SNAKEMAKE} --cores 2 {' '.join(TILES)}; status=$?; cp -a {results} {kept}; "
            "exit $status",
        ],
        cwd=begun.folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "No space left on device" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    results.rmdir()
    kept.rename(results)
    whole = made(small_run)
    assert {name: whole.get(name) for name in made(begun)} == made(begun)
    begun.snakemake("--cores", "2", *TILES)
    assert made(begun) == whole
    assert begun.jobs(*TILES) == {}


@pytest.mark.slow
def test_two_at_a_time(begun, small_run):
    """The second says that the first is at work, and does nothing; another run may go beside it."""
    first = start(begun, "--cores", "1", *TILES)
    until(lambda: list((begun.folder / "results/small/tiles").glob("*.json")))
    second = begun.snakemake("--cores", "1", *TILES, check=False)
    assert second.returncode == 1
    assert "Error: Directory cannot be locked" in second.stdout + second.stderr
    other = begun.folder / "other.yaml"
    other.write_text((begun.folder / "small.yaml").read_text().replace("small", "other", 1))
    asked = ("--cores", "1", "--until", "split_patients", "--configfile", "other.yaml")
    beside = begun.snakemake(*asked, check=False)
    if beside.returncode and ".snakemake/locks/" in beside.stdout + beside.stderr:
        # The first one came to its end in that moment, and took the folder of locks away.
        beside = begun.snakemake(*asked)
    assert beside.returncode == 0, beside.stdout + beside.stderr
    printed, _ = first.communicate(timeout=120)
    assert first.returncode == 0, printed
    assert made(begun) == made(small_run)
    assert begun.jobs(*TILES) == {}
    assert begun.jobs("--until", "split_patients", "--configfile", "other.yaml") == {}
