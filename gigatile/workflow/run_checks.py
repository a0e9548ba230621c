"""What is refused or prepared before the first job of a run, when its jobs are planned."""

import importlib.util
import os
from argparse import Namespace
from collections.abc import Set
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.provenance.reuse import forget_made_with
from gigatile.software import find_mpirun
from gigatile.workflow.invocation import Invocation

# Stages that mpirun starts; the last one uses Horovod.
MPI_STAGES = ("write_shards", "train")
# Stages that can reuse the outputs of another run.
REUSING = ("tile", "tile_new", "embed", "embed_new", "prepare", "prepare_new")


def check_run(workflow: Any, invocation: Invocation, reuse: str | None) -> None:
    """Refuse a run that would wait forever, or fail after hours of tiling.

    With `--force`, `--forcerun` or `--forceall`, slides and cases are processed again even if their
    outputs are current.

    Args:
        workflow: the global `workflow` of a Snakefile, when its jobs are planned.
        invocation: of this process.
        reuse: the run that outputs are linked from; None: none.

    Raises:
        UserError: says what to change.
    """
    _check_cores(workflow.resource_settings)
    jobs = list(workflow.dag.needrun_jobs())
    planned = {job.rule.name for job in jobs}
    _check_software(workflow, invocation, planned)
    if reuse and planned & set(REUSING) and not Path("results", reuse).is_dir():
        raise UserError(
            f"reuse: results/{reuse} does not exist; name a run of the same cohort, or set reuse "
            "to null"
        )
    if invocation.executor is not None:  # not with --touch
        for job in jobs:
            if _is_forced(job, invocation.options) and (record := job.params.get("record")):
                path = Path(record)
                for each in [path] if path.suffix else path.glob("*.json"):
                    forget_made_with(each)


def _is_forced(job: Any, options: Namespace | None) -> bool:
    """Return whether the user asked for a job, whatever else makes it run.

    Snakemake also calls a job forced that was broken off, and not one whose input was updated.
    """
    if options is None:
        return False
    asked = {os.path.normpath(name) for name in options.forcerun or ()}
    if options.force:
        asked |= {os.path.normpath(name) for name in options.targets}
    names = {job.rule.name, *map(os.path.normpath, job.output)}
    return bool(options.forceall or asked & names)


def _check_cores(settings: Any) -> None:
    """Refuse options with which no job can ever start."""
    for option, number in (
        ("--cores", settings.cores),
        ("--jobs", settings.nodes),
        ("--local-cores", settings.local_cores),
    ):
        if number is not None and number < 1:
            raise UserError(f"{option} {number}: no job could start; must be at least 1")


def _check_software(workflow: Any, invocation: Invocation, planned: Set[str]) -> None:
    """Refuse stages without their software.

    Jobs of a cluster, of conda or of a container have other software, which is not checked.
    """
    if invocation.executor != "local" or workflow.deployment_settings.deployment_method:
        return
    stages = [name for name in MPI_STAGES if name in planned]
    missing = []
    if "train" in stages and importlib.util.find_spec("horovod") is None:
        missing.append("Horovod")
    if stages and find_mpirun() is None:
        missing.append("mpirun")
    if missing:
        raise UserError(
            f"{' and '.join(stages)}: no {' and no '.join(missing)} in this environment; "
            "`make setup` in a checkout of Gigatile makes one with both. To run only the stages "
            "before, add the option --until collect_training (gigatile run DIR -- --until "
            "collect_training)"
        )
