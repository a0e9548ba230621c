"""A trained model survives every failure, and the next run trains again."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNAKEFILE = """
import sys
sys.path.insert(0, {root!r})
from gigatile.workflow.updated_outputs import keep_updated_outputs
keep_updated_outputs()

rule train:
    output:
        update("model"),
    params:
        seed=config["seed"],
    shell:
        "echo {{params.seed}} >> starts; {command}"
"""
GOOD = "echo {{params.seed}} > model.new && mv model.new model"


@pytest.fixture
def run(tmp_path):
    def start(command, seed):
        text = SNAKEFILE.format(root=str(ROOT), command=command.format())
        (tmp_path / "Snakefile").write_text(text)
        line = (*(sys.executable, "-m", "snakemake", "--cores", "1"), "--rerun-incomplete")
        return subprocess.Popen(
            [*line, "--nolock", "--config", f"seed={seed}"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def finish(process):
    printed, _ = process.communicate(timeout=60)
    return process.returncode, printed


def test_trained_model_survives_failures(run, tmp_path):
    """One test for all runs, as each takes seconds to start."""

    def model():
        return (tmp_path / "model").read_text()

    assert finish(run(GOOD, 1))[0] == 0

    # The job fails. The backup of an earlier failure must not be restored.
    (tmp_path / ".snakemake/backups").mkdir(exist_ok=True)
    (tmp_path / ".snakemake/backups/model").write_text("half a mod")
    status, printed = finish(run("exit 1", 2))
    assert status == 1 and "Removing output" not in printed, printed
    assert model() == "1\n"
    # No backup is written.
    assert (tmp_path / ".snakemake/backups/model").read_text() == "half a mod"
    # With the same code as in the failure, the job runs again because of its parameters.
    assert finish(run("exit 1", 2))[0] == 1
    assert finish(run(GOOD, 2))[0] == 0
    assert model() == "2\n"
    assert (tmp_path / "starts").read_text() == "1\n2\n2\n2\n"
    assert "Nothing to be done" in finish(run(GOOD, 2))[1]

    # The job fails after it has replaced the model: it is trained again, with any settings.
    assert finish(run(f"{GOOD}; exit 1", 3))[0] == 1
    assert model() == "3\n"
    assert finish(run(GOOD, 2))[0] == 0
    assert model() == "2\n"

    # Snakemake is killed.
    killed = run("sleep 4; exit 1", 4)
    while not (tmp_path / "starts").read_text().endswith("4\n"):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait(60)  # its shell may still run
    assert model() == "2\n"
    assert finish(run(GOOD, 4))[0] == 0
    assert model() == "4\n"
