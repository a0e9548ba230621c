"""A failed job neither deletes nor restores the outputs that its rule marks with `update()`.

Works around Snakemake 9.27, which backs such a file up in the process that runs the job. Any
process that handles the failure and has no backup deletes the file. On a cluster, the submitting
process never has a backup, so a refused submission or `scancel` deletes a trained model. An
incomplete backup (full disk, kill) even replaces the good file.

The commands of such rules replace each file with a rename, so files are always complete, and no
backup is needed. After a failure, the files and Snakemake's metadata about them stay as they are:
the parameters of the last success, and a mark of an incomplete job if it had started. So the next
run repeats the job. Snakemake would record the parameters of the failed job.

docs/slurm-executor-report.md describes the fault to its maintainers; delete this module when a
release fixes it.
"""

from collections.abc import Callable
from typing import Any

from snakemake.io import is_flagged
from snakemake.jobs import Job
from snakemake.persistence import FileBackupMixin


def keep_updated_outputs() -> None:
    """Replace these functions of Snakemake in this process; a second call does nothing."""
    if getattr(Job.postprocess, "keeps_updated_outputs", False):
        return
    Job.postprocess = _keep_if_failed(Job.postprocess)
    # A backup would copy the model at each attempt, and fail on a full disk.
    FileBackupMixin.backup_output = lambda self, path: None


def _keep_if_failed(postprocess: Callable[..., Any]) -> Callable[..., Any]:
    async def postprocess_job(self: Job, *args: Any, error: bool = False, **options: Any) -> None:
        if error and any(is_flagged(file, "update") for file in self.output):
            return
        await postprocess(self, *args, error=error, **options)

    postprocess_job.keeps_updated_outputs = True  # type: ignore[attr-defined]
    return postprocess_job
