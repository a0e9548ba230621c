"""What is asked again and what not, with an `sbatch` and a `squeue` that say what a test wants.

The real ones are in tests/cluster/test_refusals.py.
"""

import logging
import threading
from types import SimpleNamespace

import pytest

from repairs import slurm_submission
from repairs.slurm_submission import _Executor, _with_signal, passes

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
FULL = (
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: "
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    "reason",
    [
        TIMED_OUT,
        FULL,
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect "
        "failure)",
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_what_passes(reason):
    assert passes(reason)


@pytest.mark.parametrize(
    "reason",
    [
        "Invalid account or account/partition combination specified",
        "Invalid partition name specified",
        "Requested node configuration is not available",
        "Requested time limit is invalid (missing or exceeds some limit)",
        FULL.replace("QOSMaxSubmitJobPerUserLimit", "QOSMaxWallDurationPerJobLimit"),
    ],
)
def test_what_lasts(reason):
    assert not passes(reason)


class Loop:
    def call_soon_threadsafe(self, function, *arguments):
        function(*arguments)


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """Return what submits a job with a script for `sbatch`, and tells what came of it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_submission, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(slurm_submission.plugin, "get_submit_command", lambda *a, **k: "sbatch")
    monkeypatch.setattr(slurm_submission, "PATIENCE", 5)
    monkeypatch.setattr(slurm_submission.plugin, "get_job_wildcards", lambda job: job.jobid)
    monkeypatch.setattr(slurm_submission.plugin, "set_gres_string", lambda job: "")
    monkeypatch.setattr(slurm_submission.plugin, "validate_slurm_extra", lambda job: None)
    seen = SimpleNamespace(errors=[], submitted=[])

    def run(sbatch, queue=""):
        for name, text in {"sbatch": sbatch, "squeue": f"printf '{queue}'"}.items():
            script = f"#!/bin/sh\ncd {tmp_path}\necho >>{name}.calls\n{text}\n"
            (tmp_path / name).write_text(script)
            (tmp_path / name).chmod(0o755)
        job = SimpleNamespace(
            name="tile_tile",
            jobid="one",
            attempt=1,
            restart_times=2,
            is_group=lambda: True,
            resources={"runtime": 1, "mem_mb": 1},
        )
        executor = object.__new__(_Executor)
        executor._ended, executor._avoided = threading.Event(), {}
        executor.run_uuid, executor._failed_nodes = "run", set()
        executor.slurm_logdir, executor._main_event_loop = tmp_path / "logs", Loop()
        executor._submitted_job_clusters = set()
        executor.logger = logging.getLogger("submission")
        settings = SimpleNamespace(pass_command_as_script=False)
        scheduler = SimpleNamespace(error_callback=seen.errors.append)
        executor.workflow = SimpleNamespace(
            executor_settings=settings, workdir_init=str(tmp_path), scheduler=scheduler
        )
        executor.get_account_arg = lambda job: iter([""])
        executor.get_partition_arg = lambda job: ""
        executor.format_job_exec = lambda job: "true"
        executor.report_job_submission = seen.submitted.append
        executor.run_job(job)
        seen.calls = len((tmp_path / "sbatch.calls").read_text().splitlines())
        seen.attempt = job.attempt
        return seen

    return run


def test_a_failure_that_passes_costs_no_attempt(submit):
    twice = f'test $(wc -l <sbatch.calls) -gt 2 && echo 7 || {{ echo "{FULL}" >&2; exit 1; }}'
    seen = submit(twice)
    assert [one.external_jobid for one in seen.submitted] == ["7"]
    assert (seen.calls, seen.attempt, seen.errors) == (3, 1, [])


def test_a_job_that_came_through_is_not_submitted_twice(submit):
    queue = "6\\trule_other\\n7\\trule_tile_tile_wildcards_one\\n"
    seen = submit(f'echo "{TIMED_OUT}" >&2; exit 1', queue)
    assert [one.external_jobid for one in seen.submitted] == ["7"]
    assert (seen.calls, seen.errors) == (1, [])


def test_a_refusal_that_lasts_is_told_and_not_retried(submit, caplog):
    seen = submit('echo "sbatch: error: Invalid partition name specified" >&2; exit 1')
    assert "Invalid partition name specified" in caplog.text
    assert (seen.calls, len(seen.errors), seen.attempt) == (1, 1, 3)


def test_an_answer_that_is_no_number_is_told(submit, caplog):
    """Of a group the executor's own handler ends in an AttributeError."""
    seen = submit("echo welcome")
    assert "No valid SLURM job ID found in: welcome" in caplog.text and len(seen.errors) == 1


def test_the_signal_stays_beside_a_profiles_own_options():
    command = _with_signal(lambda job, params, **options: "sbatch")

    def line(extra):
        given = {"signal": "USR2@120", "slurm_extra": extra}
        return command(SimpleNamespace(name="train", resources=given), {})

    assert line("--mail-type=FAIL") == "sbatch --signal=USR2@120"
    assert line("--signal=USR2@300") == "sbatch"
    with pytest.raises(Exception, match="slurm_extra asks for --signal=TERM@60"):
        line("--signal=TERM@60")
