"""Submission to SLURM, with scripts in place of `sbatch` and `squeue`.

tests/cluster/test_refusals.py uses the real commands.
"""

import logging
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from clones import ROOT
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from gigatile.workflow import slurm_submission
from gigatile.workflow.slurm_submission import _Executor, _with_run_and_signal, is_temporary

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
def test_temporary_failure_is_recognised(reason):
    assert is_temporary(reason)


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
def test_permanent_refusal_is_recognised(reason):
    assert not is_temporary(reason)


class Loop:
    def call_soon_threadsafe(self, function, *arguments):
        function(*arguments)


class Resources(dict):
    """Resources with access by `get` and as attributes, as in Snakemake."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """Return a function that submits a job to a script in place of `sbatch`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_submission, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(slurm_submission, "RETRY_LIMIT", 5)
    command = _with_run_and_signal(slurm_submission.plugin.submit_string.get_submit_command)
    monkeypatch.setattr(slurm_submission.plugin, "get_submit_command", command)
    monkeypatch.setattr(slurm_submission.plugin, "get_job_wildcards", lambda job: job.jobid)
    # The executor's handling of failed jobs is not tested here.
    monkeypatch.setattr(
        slurm_submission.plugin.Executor, "report_job_error", lambda *args, **options: None
    )

    def run(sbatch, queue="", failed=False, **resources):
        """Submit a job; if `failed`, after an attempt with the state in `queue`."""
        # Write a line per call, with a column per argument.
        record = "printf '%s\\t' \"$@\" >>{0}.calls; echo >>{0}.calls"
        for name, text in {"sbatch": sbatch, "squeue": f"printf '{queue}'"}.items():
            script = f"#!/bin/sh\ncd {tmp_path}\n{record.format(name)}\n{text}\n"
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
            jobs=[
                SimpleNamespace(output=["cohort/sheet.tsv"]),
                SimpleNamespace(output=["results/demo/tiles/a.tfrecord"]),
            ],
            # In Snakemake, this prints the log of the job, perhaps of an earlier run.
            log_error=lambda *args, **options: logging.error("log of an earlier run"),
            resources=Resources(runtime=1, mem_mb=1, **resources),
        )
        executor = object.__new__(_Executor)
        executor._cancelled, executor._avoided = threading.Event(), {}
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


def test_temporary_failure_is_not_a_failed_attempt(submit, caplog):
    twice = f'test $(wc -l <sbatch.calls) -gt 2 && echo 7 || {{ echo "{FULL}" >&2; exit 1; }}'
    seen = submit(twice)
    assert [job.external_jobid for job in seen.submitted] == ["7"]
    assert (seen.calls, seen.attempt, seen.errors) == (3, 1, [])
    assert (
        "next attempt in 0.01 s: sbatch: error: QOSMaxSubmitJobPerUserLimit; sbatch:" in caplog.text
    )


def test_job_that_slurm_received_is_not_submitted_twice(submit):
    queue = (
        "6\\trule_tile_tile_wildcards_one in other\\n7\\trule_tile_tile_wildcards_one in demo\\n"
    )
    seen = submit(f'echo "{TIMED_OUT}" >&2; exit 1', queue)
    assert [job.external_jobid for job in seen.submitted] == ["7"]
    assert (seen.calls, seen.errors) == (1, [])


def test_permanent_refusal_is_printed_and_not_retried(submit, caplog):
    seen = submit('echo "sbatch: error: Invalid partition name specified" >&2; exit 1')
    assert "Invalid partition name specified" in caplog.text
    assert (seen.calls, len(seen.errors), seen.attempt) == (1, 1, 3)


def test_answer_without_job_id_is_printed(submit, caplog):
    """For a group, the handler of the executor raises an AttributeError."""
    seen = submit("echo welcome")
    assert "No valid SLURM job ID found in: welcome" in caplog.text and len(seen.errors) == 1


def test_slurm_extra_keeps_the_signal():
    command = _with_run_and_signal(lambda job, params, **options: "sbatch")

    def line(extra):
        given = {"signal": "USR2@120", "slurm_extra": extra}
        job = SimpleNamespace(name="train", resources=given, is_group=lambda: False, output=[])
        return command(job, {"comment_str": "rule_train"})

    assert line("--mail-type=FAIL") == "sbatch --signal=USR2@120"
    assert line("--signal=USR2@300") == "sbatch"
    with pytest.raises(Exception, match="slurm_extra asks for --signal=TERM@60"):
        line("--signal=TERM@60")


def test_sbatch_gets_the_signal_and_the_options_of_the_site(submit, tmp_path):
    extra = "--mail-type=FAIL --licenses='a b'"
    (line,) = submit("echo 7", signal="USR2@120", slurm_extra=extra).lines
    assert line == [
        *("--parsable", "--job-name", "run"),
        *("--output", f"{tmp_path}/logs/group_tile_tile/one/%j.log", "--export=ALL"),
        *("--comment", "rule_tile_tile_wildcards_one in demo", "-A", "lab", "-p", "cpu"),
        *("-t", "1", "--mem", "1", "--ntasks=1", "--cpus-per-task=1"),
        *("--mail-type=FAIL", "--licenses=a b", "-D", str(tmp_path)),
        *("--signal=USR2@120", "--wrap=true"),
    ]


def avoided(seen):
    return [[word for word in line if word.startswith("--exclude")] for line in seen.lines]


def test_retry_excludes_the_node_of_the_failure(submit):
    seen = submit("echo 7", "FAILED\\tn2\\n", failed=True)
    assert avoided(seen) == [["--exclude=n2"]]


@pytest.mark.parametrize(
    "state",
    [
        *("OUT_OF_MEMORY\\tn2", "TIMEOUT\\tn2", "CANCELLED\\tn2", "PREEMPTED\\tn2"),
        *("FAILED\\tn[1-2]", "FAILED\\tn1,n2", "FAILED\\t", ""),
    ],
)
def test_node_that_may_be_healthy_is_not_excluded(submit, state):
    assert avoided(submit("echo 7", state, failed=True)) == [[]]


def test_retry_uses_the_same_node_if_no_other_can_run_it(submit):
    refuse = 'echo "sbatch: error: Requested node configuration is not available" >&2; exit 1'
    seen = submit(f"case $* in *--exclude*) {refuse};; esac; echo 7", "FAILED\\tn2\\n", failed=True)
    assert avoided(seen) == [["--exclude=n2"], []]
    assert [job.external_jobid for job in seen.submitted] == ["7"] and seen.errors == []


def test_refused_submission_prints_no_log_of_an_earlier_run(submit, caplog):
    seen = submit('echo "sbatch: error: Invalid partition name specified" >&2; exit 1')
    assert len(seen.errors) == 1 and "Invalid partition name specified" in caplog.text
    assert "earlier run" not in caplog.text


def test_words_in_the_command_make_no_refusal_temporary():
    heading = "SLURM sbatch failed. The error message was 'Invalid qos specification'.\n"
    assert not is_temporary(f"{heading}    sbatch call:\n        sbatch -D /data/communication\n")


def test_lost_jobs_are_found(tmp_path, monkeypatch):
    """Preempted at two checks, or not listed for `RETRY_LIMIT`; a requeued job is neither."""
    squeue = tmp_path / "squeue"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_submission, "CHECK_INTERVAL", 0)
    executor = object.__new__(_Executor)
    executor._lost, executor._last_check = {}, 0.0
    jobs = [SubmittedJobInfo(None, external_jobid=number) for number in ("5", "6", "7", "8_1")]

    def check(*lines):
        squeue.write_text("#!/bin/sh\n" + "".join(f"printf '{line}\\n'\n" for line in lines))
        squeue.chmod(0o755)
        return executor._find_lost(jobs)

    assert check("5\\tPREEMPTED", "6\\tPREEMPTED") == {}
    assert check("5\\tPENDING", "6\\tPREEMPTED") == {
        "6": "SLURM preempted job 6 and does not requeue it."
    }
    assert check("5\\tPREEMPTED", "6\\tRUNNING") == {}
    monkeypatch.setattr(slurm_submission, "RETRY_LIMIT", 0)
    assert list(check("5\\tRUNNING", "6\\tRUNNING")) == ["7"]
    squeue.write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    assert executor._find_lost(jobs) == {}


# --- The step of a job


def test_a_step_gets_its_own_options_and_not_those_of_the_job(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "$@"\nenv\n')
    srun.chmod(0o755)
    given = {
        **{"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4", "SLURM_TRES_PER_TASK": "cpu=4"},
        **{"SRUN_CONTAINER": "x", "SBATCH_QOS": "low", "PATH": f"{tmp_path}:/usr/bin:/bin"},
        "TMPDIR": "/scratch",
    }
    line = [sys.executable, ROOT / "scripts/start_step.py", "-n1", "echo", "two words"]
    done = subprocess.run(line, env=given, capture_output=True, text=True, check=True)
    printed, *variables = done.stdout.splitlines()
    assert printed == "-n1 echo two words"
    names = {line.partition("=")[0] for line in variables}
    assert {"SLURM_JOB_ID", "TMPDIR", "PATH"} <= names
    assert not names & {
        "SLURM_CPUS_PER_TASK",
        "SLURM_TRES_PER_TASK",
        "SRUN_CONTAINER",
        "SBATCH_QOS",
    }
