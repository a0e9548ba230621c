"""Jobs that outlive their Snakemake: their outputs have metadata or a mark of an incomplete job.

Works around two faults of Snakemake 9.27, after which later changes of settings, code or sheets go
unnoticed:

- In a job on a cluster, Snakemake removes the marks; the metadata are written by the main process,
  which may have been killed meanwhile. Here, the main process stores the metadata when it submits a
  job: with the parameters and the code of that plan. The job writes them when it has succeeded.
- A local job starts before its outputs are marked. Here, they are marked first.
"""

from collections.abc import Callable
from typing import Any

from snakemake.executors.local import Executor
from snakemake.jobs import Job
from snakemake.persistence import RECORD_FORMAT_VERSION, MetadataRecord
from snakemake.persistence.file import FilePersistence
from snakemake.settings.types import ExecMode

from gigatile.workflow.snakemake_internals import PLANNED


def record_orphaned_jobs() -> None:
    """Replace these functions of Snakemake in this process; a second call does nothing."""
    if getattr(Job.postprocess, "records_orphaned_jobs", False):
        return
    Job.postprocess = _record_success(Job.postprocess)
    FilePersistence.started = _store_plan(FilePersistence.started)
    FilePersistence.finished = _remove_plan(FilePersistence.finished)
    Executor.run_single_job = _mark_first(Executor.run_single_job)


def _mark_first(run_single_job: Callable[..., Any]) -> Callable[..., Any]:
    def run_job(self: Executor, job: Job) -> Any:
        job.register()
        return run_single_job(self, job)

    return run_job


def _store_plan(started: Callable[..., None]) -> Callable[..., None]:
    def start(self: FilePersistence, job: Job, external_jobid: str | None = None) -> None:
        if _is_main(self) and external_jobid is not None:
            # Otherwise these could be the parameters with which Snakemake decided to run the job.
            self._params.cache_clear()
            record = {
                "rule": job.rule.name,
                "code": self._code(job.rule),
                "input": self._input(job),
                "log": self._log(job),
                "params": self._params(job),
                "shellcmd": job.shellcmd,
                "conda_env": self._conda_env(job),
                "software_stack_hash": self._software_stack_hash(job),
                "container_img_url": job.container_img_url,
                "job_hash": hash(job),
            }
            for file in job.output:
                self._io_write(str(PLANNED), record, self._get_key(file))
        started(self, job, external_jobid)

    return start


def _remove_plan(finished: Callable[..., Any]) -> Callable[..., Any]:
    async def finish(self: FilePersistence, job: Job) -> None:
        await finished(self, job)
        if _is_main(self):
            for file in job.output:
                self._io_delete(str(PLANNED), self._get_key(file))

    return finish


def _record_success(postprocess: Callable[..., Any]) -> Callable[..., Any]:
    async def postprocess_job(self: Job, *args: Any, error: bool = False, **options: Any) -> None:
        persistence, unknown = self.dag.workflow.persistence, []
        # Before Snakemake removes the marks: outputs have a mark or metadata at any time.
        if not error and isinstance(persistence, FilePersistence) and not _is_main(persistence):
            unknown = await _record(persistence, self)
        await postprocess(self, *args, error=error, **options)
        # The main process removes this mark, if it still runs.
        for key in unknown:
            persistence._mark_incomplete(key, None)

    postprocess_job.records_orphaned_jobs = True  # type: ignore[attr-defined]
    return postprocess_job


async def _record(persistence: FilePersistence, job: Job) -> list[str]:
    """Write the metadata about the outputs of a job that has just succeeded.

    Returns:
        The keys of outputs whose metadata the main process has not stored: it was killed between
        the submission of the job and that.
    """
    unknown = []
    checksums = {
        str(file): await file.checksum(persistence.max_checksum_file_size) for file in job.input
    }
    for file in job.output:
        key = persistence._get_key(file)
        planned = persistence._io_read(str(PLANNED), key)
        if not planned:
            unknown.append(key)
            continue
        if not await file.exists():
            continue
        record = MetadataRecord(
            **planned,
            incomplete=False,
            record_format_version=RECORD_FORMAT_VERSION,
            starttime=persistence._get_recorded_starttime(key),
            endtime=(await file.mtime()).local_or_storage(),
            input_checksums={name: value for name, value in checksums.items() if value is not None},
        )
        persistence._write_record(key, record)
    return unknown


def _is_main(persistence: FilePersistence) -> bool:
    return persistence.dag.workflow.exec_mode == ExecMode.DEFAULT
