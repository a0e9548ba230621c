"""A local job finds the marks of its outputs, so that they count as incomplete if all is killed."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SNAKEFILE = f"""
import sys
import time
sys.path.insert(0, {str(ROOT)!r})
from gigatile.workflow.orphaned_jobs import record_orphaned_jobs
from snakemake.persistence.file import FilePersistence

# The time that a busy machine may take.
write_mark = FilePersistence._mark_incomplete
def wait_and_mark(self, key, external_jobid):
    time.sleep(0.5)
    write_mark(self, key, external_jobid)
FilePersistence._mark_incomplete = wait_and_mark

record_orphaned_jobs()

rule all:
    input:
        "first", "second"

rule job:
    output:
        "{{name}}"
    shell:
        "ls .snakemake/incomplete > {{output}}"
"""


def test_marks_are_written_before_a_job_starts(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    line = [sys.executable, "-m", "snakemake", "--cores", "2"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / name).read_text() for name in ("first", "second"))
    assert not list((tmp_path / ".snakemake/incomplete").iterdir())


def run_as_job(folder):
    """Run a job as a cluster does, with no main process that waits for it; return its records."""
    line = [
        *(sys.executable, "-m", "snakemake"),
        "--mode",
        "subprocess",
        "--nolock",
        "--cores",
        "1",
    ]
    done = subprocess.run(
        [*line, "--rerun-incomplete", "--force", "first"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    state = folder / ".snakemake"
    return [
        [path for path in (state / name).iterdir() if path.is_file()]
        for name in ("metadata", "incomplete")
    ]


def test_success_without_a_main_process_leaves_metadata_or_a_mark(tmp_path):
    """The metadata that the main process stored, or a mark if it was killed before that."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    metadata, marks = run_as_job(tmp_path)
    assert (metadata, len(marks)) == ([], 1)
    stored = tmp_path / ".snakemake/planned" / marks[0].name
    stored.parent.mkdir()
    stored.write_text(json.dumps({"rule": "job", "params": ["of the plan"]}))
    metadata, marks = run_as_job(tmp_path)
    assert marks == []
    (record,) = metadata
    assert json.loads(record.read_text())["params"] == ["of the plan"]
