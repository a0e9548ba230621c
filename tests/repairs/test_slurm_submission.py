"""What is asked again and what not, with an `sbatch` and a `squeue` that say what a test wants.

The real ones are in tests/cluster/test_refusals.py.
"""

import logging
import threading
from types import SimpleNamespace

import pytest
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

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


class Resources(dict):
    """As Snakemake's, which give a resource by `get` and as an attribute."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """Return what submits a job with a script for `sbatch`, and tells what came of it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_submission, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(slurm_submission, "PATIENCE", 5)
    command = _with_signal(slurm_submission.plugin.submit_string.get_submit_command)
    monkeypatch.setattr(slurm_submission.plugin, "get_submit_command", command)
    monkeypatch.setattr(slurm_submission.plugin, "get_job_wildcards", lambda job: job.jobid)
    # What is done for a job that failed; it has no part in what is tested here.
    monkeypatch.setattr(
        slurm_submission.plugin.Executor, "report_job_error", lambda *args, **options: None
    )

    def run(sbatch, queue="", failed=False, **resources):
        """Submit a job, after an attempt that failed as `queue` tells; `resources` are its own."""
        # One line for each call, one column for each argument.
        note = "printf '%s\\t' \"$@\" >>{0}.calls; echo >>{0}.calls"
        for name, text in {"sbatch": sbatch, "squeue": f"printf '{queue}'"}.items():
            script = f"#!/bin/sh\ncd {tmp_path}\n{note.format(name)}\n{text}\n"
            (tmp_path / name).write_text(script)
            (tmp_path / name).chmod(0o755)
        seen = SimpleNamespace(errors=[], submitted=[])
        job = SimpleNamespace(
            name="tile_tile",
            jobid="one",
            attempt=1,
            restart_times=2,
            threads=1,
            is_group=lambda: True,
            # Snakemake's shows the log of the job, which may be of an earlier run.
            log_error=lambda *args, **options: logging.error("words of an earlier run"),
            resources=Resources(runtime=1, mem_mb=1, **resources),
        )
        executor = object.__new__(_Executor)
        executor._ended, executor._avoided = threading.Event(), {}
        executor.run_uuid, executor._failed_nodes = "run", set()
        executor.slurm_logdir, executor._main_event_loop = tmp_path / "logs", Loop()
        executor._submitted_job_clusters = set()
        executor.logger = logging.getLogger("submission")
        settings = SimpleNamespace(
            pass_command_as_script=False, requeue=False, no_requeue=False, qos="", reservation=""
        )
        scheduler = SimpleNamespace(error_callback=seen.errors.append)
        executor.workflow = SimpleNamespace(
            executor_settings=settings, workdir_init=str(tmp_path), scheduler=scheduler
        )
        executor.get_account_arg = lambda job: iter(["-A lab"])
        executor.get_partition_arg = lambda job: "-p cpu"
        executor.format_job_exec = lambda job: "true"
        executor.report_job_submission = seen.submitted.append
        if failed:
            executor.report_job_error(SubmittedJobInfo(job, external_jobid="5"))
        executor.run_job(job)
        calls = (tmp_path / "sbatch.calls").read_text().splitlines()
        seen.lines = [line.rstrip("\t").split("\t") for line in calls]
        seen.calls, seen.attempt = len(calls), job.attempt
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


def test_the_whole_line_for_sbatch(submit, tmp_path):
    """With the signal and with what a site adds."""
    extra = "--mail-type=FAIL --licenses='a b'"
    (line,) = submit("echo 7", signal="USR2@120", slurm_extra=extra).lines
    assert line == [
        *("--parsable", "--job-name", "run"),
        *("--output", f"{tmp_path}/logs/group_tile_tile/one/%j.log", "--export=ALL"),
        *("--comment", "rule_tile_tile_wildcards_one", "-A", "lab", "-p", "cpu"),
        *("-t", "1", "--mem", "1", "--ntasks=1", "--cpus-per-task=1"),
        *("--mail-type=FAIL", "--licenses=a b", "-D", str(tmp_path)),
        *("--signal=USR2@120", "--wrap=true"),
    ]


def avoided(seen):
    return [[word for word in line if word.startswith("--exclude")] for line in seen.lines]


def test_a_retry_avoids_the_node_that_failed_the_job(submit):
    seen = submit("echo 7", "FAILED\\tn2\\n", failed=True)
    assert avoided(seen) == [["--exclude=n2"]]


@pytest.mark.parametrize(
    "told",
    [
        *("OUT_OF_MEMORY\\tn2", "TIMEOUT\\tn2", "CANCELLED\\tn2", "PREEMPTED\\tn2"),
        *("FAILED\\tn[1-2]", "FAILED\\tn1,n2", "FAILED\\t", ""),
    ],
)
def test_no_node_is_avoided_that_may_be_good(submit, told):
    assert avoided(submit("echo 7", told, failed=True)) == [[]]


def test_where_no_other_node_can_do_it_the_retry_may_take_the_same(submit):
    refuse = 'echo "sbatch: error: Requested node configuration is not available" >&2; exit 1'
    seen = submit(f"case $* in *--exclude*) {refuse};; esac; echo 7", "FAILED\\tn2\\n", failed=True)
    assert avoided(seen) == [["--exclude=n2"], []]
    assert [one.external_jobid for one in seen.submitted] == ["7"] and seen.errors == []


def test_a_refused_submission_shows_no_log_of_an_earlier_run(submit, caplog):
    seen = submit('echo "sbatch: error: Invalid partition name specified" >&2; exit 1')
    assert len(seen.errors) == 1 and "Invalid partition name specified" in caplog.text
    assert "earlier run" not in caplog.text


def test_the_words_of_the_command_do_not_decide_whether_a_refusal_passes():
    heading = "SLURM sbatch failed. The error message was 'Invalid qos specification'.\n"
    assert not passes(f"{heading}    sbatch call:\n        sbatch -D /data/communication\n")
