"""Predicts slides one after the other, each with `gigatile predict` in separate processes.

So the results are those of the workflow, a decoder that crashes ends its own process, and a job
that was interrupted continues with the first stage that is missing.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from gigatile.errors import UserError
from gigatile.files import read_json, write_text
from gigatile.report.pages import without_folders
from gigatile.serving.job_store import (
    CANCELLED,
    DONE,
    FAILED,
    FINAL,
    QUEUED,
    RUNNING,
    Job,
    JobStore,
)
from gigatile.serving.registry import ModelRegistry, ServedModel
from gigatile.serving.settings import ServerSettings
from gigatile.tables import read_table, write_table

# The id of the slide in a job: its own name may be that of a patient.
SLIDE = "slide"
# Marks the processes of a job, so that those of a killed server are found.
MARK = "GIGATILE_JOB"
# A line of the command's progress: `tile new: 0 of 1, …`.
PROGRESS = re.compile(r"^([a-z ]+): (\d+) of (\d+)\b")
POLL_SECONDS = 0.2
# Between measurements of the memory, which take some milliseconds.
MEMORY_SECONDS = 2
# For a job to arrive, or for a full disk to have space again.
RETRY_SECONDS = 5
# For processes to end after SIGTERM.
GRACE_SECONDS = 20
# Variables that the processes of a job need; others may be secrets of the server.
ENVIRONMENT = re.compile(
    r"PATH|HOME|LANG|LC_.*|TMPDIR|USER|XDG_.*|CUDA_.*|LD_LIBRARY_PATH|OMP_.*|OPENBLAS_.*|TF_.*"
)


class JobQueue:
    """Runs the jobs of a store in threads, one process tree each."""

    def __init__(self, settings: ServerSettings, models: ModelRegistry) -> None:
        """Open the store in the work folder.

        Raises:
            UserError: the folder cannot be used.
        """
        assert settings.work_dir is not None
        self._settings, self._models = settings, models
        self._folder = settings.work_dir / "jobs"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = (settings.work_dir / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--work-dir {settings.work_dir}: another server uses it") from None
        except OSError as error:
            raise UserError(f"--work-dir {settings.work_dir}: {error.strerror}") from None
        try:
            self._store = JobStore(settings.work_dir / "jobs.sqlite")
        except Exception as error:
            raise UserError(f"--work-dir {settings.work_dir}: {error}") from None
        self._changed = threading.Condition()
        self._is_stopping = False
        self._cancelled: set[str] = set()
        self._threads = [
            threading.Thread(target=self._work, name=f"job {number}", daemon=True)
            for number in range(settings.max_jobs)
        ]

    @property
    def store(self) -> JobStore:
        """The jobs."""
        return self._store

    def start(self) -> None:
        """Continue the jobs of the last server, and start the threads."""
        for job in self._store.with_state(RUNNING):
            _end(_processes_of(job.id))
            self._store.change(job.id, QUEUED, only_from=(RUNNING,))
        self._remove_partial_uploads()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Interrupt running jobs; they continue when the server starts again."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._store.close()
        self._lock.close()

    def folder(self, id: str) -> Path:
        """Return the folder of a job."""
        return self._folder / id

    def results(self, job: Job) -> Path:
        """Return the folder of the predictions of a job."""
        return self.folder(job.id) / "run" / "results" / job.model / "predictions"

    def add(
        self, id: str, source: Path, name: str, model: str, version: int, mpp: float | None
    ) -> Job:
        """Add a job.

        Args:
            id: of the job, from `new_id`; its folder exists.
            source: the slide's file.
            name: of the slide, for people to read.
            model, version: that predict it.
            mpp: micrometres per pixel of level 0; None: as in the file.
        """
        job = self._store.add(name, model, version, source, mpp, id)
        with self._changed:
            self._changed.notify()
        return job

    def cancel(self, id: str) -> bool:
        """Cancel a job that waits or runs; return whether it did."""
        with self._changed:
            if self._store.change(id, CANCELLED, only_from=(QUEUED,)):
                return True
            job = self._store.get(id)
            if job is None or job.state != RUNNING:
                return False
            self._cancelled.add(id)
        return True

    def delete(self, id: str) -> bool:
        """Delete a job that has ended, with its files; return whether it had."""
        if not self._store.delete(id):
            return False
        shutil.rmtree(self.folder(id), ignore_errors=True)
        return True

    def _work(self) -> None:
        while job := self._next():
            try:
                state, reason = self._run(job)
            except Exception as error:  # a full disk, for example: the server goes on
                state, reason = FAILED, without_folders(error)
            self._record(job, state, reason)
            self._cancelled.discard(job.id)

    def _next(self) -> Job | None:
        """Wait for a job, and mark it as running; None: the server stops."""
        with self._changed:
            while not self._is_stopping:
                with contextlib.suppress(sqlite3.Error):  # the disk is full
                    if job := self._store.begin_next():
                        return job
                self._changed.wait(RETRY_SECONDS)
        return None

    def _record(self, job: Job, state: str, reason: str) -> None:
        """Record the end of a job; if the disk is full, as soon as it is not."""
        while True:
            try:
                self._store.change(job.id, state, only_from=(RUNNING,), reason=reason)
                return
            except sqlite3.Error:
                # At the next start, a job that seems to run is begun again, and has nothing to do.
                if self._is_stopping:
                    return
                time.sleep(RETRY_SECONDS)

    def _run(self, job: Job) -> tuple[str, str]:
        """Run a job; return its next state and, if it failed, the reason."""
        models = self._models.by_name.get(job.model, {})
        if job.version not in models:
            return FAILED, f"the server has no model {job.model}, version {job.version}"
        if not Path(job.source).is_file():
            return FAILED, "the slide's file is missing"
        folder = self.folder(job.id)
        model = models[job.version]
        self._remove_results_of_another_model(folder, model)
        sheet = folder / "samples.tsv"
        mpp = "" if job.mpp is None else repr(job.mpp)
        write_table(sheet, ("slide", "path", "mpp"), [(SLIDE, job.source, mpp)])
        command = [
            *(sys.executable, "-P", "-m", "gigatile", "predict"),
            *(str(model.bundle.folder.resolve()), str(sheet)),
            *(("--encoder", str(model.encoder)) if model.encoder else ()),
            *("--out", str(folder / "run"), "--cores", str(self._settings.job_cores)),
            # The folder is this job's alone: a lock is of a server that was killed.
            *("--", "--nolock", "--rerun-incomplete"),
        ]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=_environment(job.id),
                start_new_session=True,
            )
            reader = threading.Thread(target=self._read_progress, args=(job, process, log.fileno()))
            reader.start()
            ended = self._watch(job, process)
            reader.join()
        return ended or self._result(job, process.returncode)

    def _remove_results_of_another_model(self, folder: Path, model: ServedModel) -> None:
        """Begin again if bundle or encoder were moved or changed since the job was interrupted."""
        bundle = model.bundle
        text = f"{bundle.folder.resolve()}\n{bundle.manifest.model_sha256}\n"
        text += f"{model.encoder}\n" if model.encoder else ""
        made_with = folder / "bundle"
        if not made_with.exists() or made_with.read_text() != text:
            shutil.rmtree(folder / "run", ignore_errors=True)
            write_text(made_with, text)

    def _watch(self, job: Job, process: subprocess.Popen[str]) -> tuple[str, str] | None:
        """Wait for the end; return a state if this job was ended before."""
        start = time.monotonic()
        until, measured, memory = start + self._settings.job_seconds, start, 0
        verdict = None
        while process.poll() is None:
            if self._is_stopping:
                verdict = (QUEUED, "")
            elif job.id in self._cancelled:
                verdict = (CANCELLED, "")
            elif (now := time.monotonic()) > until:
                verdict = (FAILED, f"it took more than {self._settings.job_seconds:g} s")
            elif now - measured > MEMORY_SECONDS:
                measured, memory = now, _memory(process.pid)
            if memory > self._settings.job_memory_bytes:
                limit = self._settings.job_memory_bytes / 1e9
                verdict = (FAILED, f"it needed more than {limit:g} GB of memory")
            if verdict:
                break
            time.sleep(POLL_SECONDS)
        _end(_processes_of(job.id))
        process.wait()
        return verdict

    def _read_progress(self, job: Job, process: subprocess.Popen[str], log: int) -> None:
        progress: dict[str, list[int]] = {}
        assert process.stderr is not None
        for line in process.stderr:
            with contextlib.suppress(OSError):  # the disk is full
                os.write(log, line.encode())
            if match := PROGRESS.match(line):
                progress[match[1]] = [int(match[2]), int(match[3])]
                with contextlib.suppress(Exception):
                    self._store.set_progress(job.id, progress)

    def _result(self, job: Job, status: int) -> tuple[str, str]:
        """Return the state of a job whose command has ended, and why it failed."""
        # A classifier leaves a table of tiles and states in tiles/; a detector, in slides/.
        for name in ("tiles", "slides"):
            with contextlib.suppress(UserError, OSError, KeyError):
                columns = ("slide", "state", "reason")
                (row,) = read_table(self.results(job) / f"{name}.tsv", columns)
                if row["state"] == "failed":
                    return FAILED, without_folders(row["reason"])
            with contextlib.suppress(UserError, OSError, KeyError, TypeError):
                state = read_json(self.results(job) / name / f"{SLIDE}.json")
                if state["state"] == "failed":
                    return FAILED, without_folders(state["reason"])
        if status == 0:
            return DONE, ""
        lines = (self.folder(job.id) / "log").read_text(errors="replace").splitlines()
        said = [line for line in lines if line.startswith(("error: ", "failed: "))]
        reason = said[-1] if said else f"the command ended with status {status}"
        return FAILED, without_folders(reason)

    def _remove_partial_uploads(self) -> None:
        known = {job.id for job in self._store.newest(2**31)}
        for folder in self._folder.iterdir():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)


def _environment(id: str) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if ENVIRONMENT.fullmatch(name)}
    return kept | {MARK: id, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": _library()}


def _library() -> str:
    return str(Path(__file__).resolve().parents[2])


def _memory(pid: int) -> int:
    """Return the resident memory of a process and all its children, in bytes."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def _processes_of(id: str) -> list[psutil.Process]:
    """Return all processes of a job, also those of which the parent has ended."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == id:
                processes.append(process)
    return processes


def _end(processes: list[psutil.Process]) -> None:
    """End processes: first with SIGTERM, then with SIGKILL."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 5)):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        _, processes = psutil.wait_procs(processes, timeout=seconds)


def is_final(job: Job) -> bool:
    """Return whether a job has ended."""
    return job.state in FINAL
