"""What a process of Snakemake will do, by its command line."""

from types import SimpleNamespace

import pytest

from gigatile.errors import UserError
from gigatile.workflow import invocation
from gigatile.workflow.invocation import Invocation


def invoke(*arguments: str, main: bool = True, scheduler: object = None) -> Invocation:
    workflow = SimpleNamespace(is_main_process=main, scheduler=scheduler, dryrun=False)
    return Invocation(workflow, arguments)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder, without a profile."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "executor"),
    [
        (("--cores", "1"), "local"),
        (("--executor", "dryrun"), "dryrun"),
        (("--cores", "1", "-n"), None),
        (("--cores", "1", "--touch"), None),
        (("--summary",), None),
        (("--lint",), None),
        (("--not-an-option",), None),
    ],
)
def test_executor_is_none_without_jobs(arguments, executor):
    assert invoke(*arguments).executor == executor


def test_process_of_a_job_has_no_options():
    job = invoke("--cores", "1", main=False)
    assert (job.options, job.executor, job.needs_metadata) == (None, None, False)


def test_planning_ends_when_jobs_are_scheduled():
    assert invoke("--cores", "1").is_planning
    assert not invoke("--cores", "1", scheduler=object()).is_planning
    assert not invoke("--cores", "1", main=False).is_planning


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("--cores", "1"), True),
        (("-n",), True),
        (("-n", "--forceall"), False),
        (("--touch", "--cores", "1"), False),
        (("verify", "--cores", "1"), False),
        (("verify", "all", "--cores", "1"), True),
        (("--cores", "1", "--persistence-backend", "db"), False),
    ],
)
def test_metadata_are_needed_to_decide_which_jobs_run(arguments, needed):
    assert invoke(*arguments).needs_metadata == needed


def test_read_only_folder_is_an_error_only_for_jobs(folder, monkeypatch):
    monkeypatch.setattr(invocation.os, "access", lambda path, mode: path.name != "results")
    (folder / "results").mkdir()
    invoke("-n").check_writable(".", "results")
    invoke("--cores", "1").check_writable(".", "results/not-yet")
    with pytest.raises(UserError, match=rf"{folder}/results: not writable"):
        invoke("--cores", "1").check_writable(".", "results")


@pytest.mark.parametrize(
    ("arguments", "squeue", "locked", "waits"),
    [
        (("--executor", "slurm", "--jobs", "1"), True, None, True),
        (("--executor", "slurm", "--jobs", "1"), False, None, False),
        (("--executor", "slurm", "--jobs", "1"), True, "demo", False),
        (("--executor", "slurm", "--jobs", "1"), True, "demo-2", True),
        (("--executor", "slurm", "--jobs", "1", "-n"), True, None, False),
        (("--cores", "1"), True, None, False),
    ],
)
def test_earlier_jobs_are_awaited_before_submitting(
    folder, monkeypatch, arguments, squeue, locked, waits
):
    awaited = []
    monkeypatch.setattr(invocation, "await_jobs_of", lambda *args: awaited.append(args[:2]))
    monkeypatch.setattr(invocation.shutil, "which", lambda name: name if squeue else None)
    if locked:
        (folder / ".snakemake/locks").mkdir(parents=True)
        lock = folder / ".snakemake/locks/0.output.lock"
        lock.write_text(f"results/{locked}/tiles/a.tfrecord\nresults/{locked}/model\n")
    invoke(*arguments).await_earlier_jobs("results/demo")
    assert awaited == ([(folder, "demo")] if waits else [])
