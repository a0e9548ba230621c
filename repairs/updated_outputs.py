"""A failed job neither deletes nor restores the outputs that its rule marks with `update()`.

Snakemake 9.27 backs such a file up in the process that runs the job. Any process that handles the
failure and finds no backup deletes the file. On a cluster the submitting process never has a
backup, so a refused submission or `scancel` deletes a trained model. A backup that is incomplete
(full disk, kill) even replaces the good file.

Here the commands of such rules replace each file with a rename, so every file is always complete
and no backup is needed. After a failure both the files and Snakemake's metadata about them stay
as they are: the parameters of the last success, and a mark of an incomplete job if it had started.
The next run therefore repeats the job. Snakemake itself would record the parameters of the failed
job.
"""

from collections.abc import Callable
from typing import Any

from snakemake.io import is_flagged
from snakemake.jobs import Job
from snakemake.persistence import FileBackupMixin


def keep_updated_outputs() -> None:
    """Repair Snakemake in this process; a second call does nothing."""
    if getattr(Job.postprocess, "keeps_updated_outputs", False):
        return
    Job.postprocess = _mended(Job.postprocess)
    # A backup would copy the model at each attempt, and fail on a full disk.
    FileBackupMixin.backup_output = lambda self, path: None


def _mended(postprocess: Callable[..., Any]) -> Callable[..., Any]:
    async def mended(self: Job, *args: Any, error: bool = False, **options: Any) -> None:
        if error and any(is_flagged(file, "update") for file in self.output):
            return
        await postprocess(self, *args, error=error, **options)

    mended.keeps_updated_outputs = True  # type: ignore[attr-defined]
    return mended
