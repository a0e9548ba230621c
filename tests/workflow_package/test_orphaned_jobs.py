"""A local job finds the marks of its outputs, so that they count as incomplete if all is killed."""

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
