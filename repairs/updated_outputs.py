"""What a rule marks with `update()` is never deleted or put back by a failure.

Snakemake 9.27 copies such a file into `.snakemake/backups` in the process that runs the job, and
deletes the file in any process that hears of the failure and finds no copy. On a cluster the
process that submits never has one: a refused submission or `scancel` deletes a trained model. A
copy that was broken off (a full disk, a kill) is even put back over the good file.

The commands of such rules here replace their files by a rename, so each is whole at any time, and
there is nothing to put back. After a failure the files stay as they are, and so does what
Snakemake knows of them: the parameters of the last success, and that the job is incomplete if it
had begun. The next run therefore does it again. Snakemake itself would note the parameters of the
job that failed.
"""

from collections.abc import Callable
from typing import Any

from snakemake.io import is_flagged
from snakemake.jobs import Job
from snakemake.persistence import FileBackupMixin


def keep_updated_outputs() -> None:
    """Mend it in this process; a second call does nothing."""
    if getattr(Job.postprocess, "keeps_updated_outputs", False):
        return
    Job.postprocess = _mended(Job.postprocess)
    # Each attempt would copy the model, and a full disk would end the job.
    FileBackupMixin.backup_output = lambda self, path: None


def _mended(postprocess: Callable[..., Any]) -> Callable[..., Any]:
    async def mended(self: Job, *args: Any, error: bool = False, **options: Any) -> None:
        if error and any(is_flagged(file, "update") for file in self.output):
            return
        await postprocess(self, *args, error=error, **options)

    mended.keeps_updated_outputs = True  # type: ignore[attr-defined]
    return mended
