#!/usr/bin/env python3
"""Estimate what a run will take: jobs, core-hours, GPU-hours, storage, longest chain of jobs.

It reads the sample sheet, not the slides. Speeds come from earlier runs in results/ whose jobs
lasted long enough, otherwise from defaults.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gigatile.command.configuration import load
from gigatile.errors import UserError, run_command
from gigatile.planning.costs import (
    Cost,
    PlannedJob,
    estimate_costs,
    longest_chain,
    measured_rates,
)
from gigatile.planning.runs import cohort_of
from gigatile.planning.stored import describe_stored
from gigatile.tasks import TASKS, find_task, task_part

PROJECT = Path(__file__).resolve().parents[1]
# More cores than any job requests: Snakemake reduces the threads of a job to the available cores.
MANY_CORES = "1000000"
# A job in the output of a dry run. The jobs of a group are indented.
JOB = re.compile(r"^( *)(?:local)?rule (\w+):\n((?:\1 {4}.*\n)+)", re.MULTILINE)
COLUMNS = "{:17} {:>7} {:>10} {:>11} {:>10} {:>10}  {}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configfile", type=Path, help="settings of the run")
    parser.add_argument("--profile", type=Path, help="profile of the cluster that it will run on")
    add_estimates(parser)
    args = parser.parse_args()
    settings = load(args.configfile)
    estimate = getattr(args, estimate_of(settings.task))
    if estimate is None:
        estimate = task_part(settings.task, "planning").PLAN.estimate
    if not estimate > 0:
        parser.error(
            f"the estimate per {find_task(settings.task).unit} is {estimate:g}; must be above 0"
        )
    jobs = list(planned_jobs(args.configfile, args.profile))
    cohort = cohort_of(settings, estimate)
    rates = measured_rates(Path("results"), settings.train.model, cohort.plan)
    costs = estimate_costs(jobs, cohort, rates)
    if not costs:
        print("nothing to do")
        return
    print(COLUMNS.format("stage", "jobs", "longest", "core-hours", "GPU-hours", "GB", "speed"))
    for name, cost in costs.items():
        print(table_row(name, cost))
    print(table_row("total", total(costs.values())))
    seconds, chain = longest_chain(costs, cohort.plan)
    print(f"longest chain: {format_duration(seconds)} ({', '.join(chain)})")
    if line := describe_stored(settings, jobs):
        print(line)


def add_estimates(parser: argparse.ArgumentParser) -> None:
    """Add an option for the estimate of each task; tasks with the same name of it share one."""
    for option in dict.fromkeys(map(estimate_of, TASKS)):
        names = [name for name in TASKS if estimate_of(name) == option]
        defaults = [f"{task_part(name, 'planning').PLAN.estimate:g}" for name in names]
        parser.add_argument(
            "--" + option.replace("_", "-"),
            type=float,
            help=f"estimate until each {find_task(names[0]).unit} is prepared "
            f"({', '.join(dict.fromkeys(defaults))})",
        )


def estimate_of(task: str) -> str:
    """Return the name of a task's estimate, such as `tiles_per_slide`."""
    return f"{task_part(task, 'planning').PLAN.column}_per_{find_task(task).unit}"


def planned_jobs(configfile: Path | None, profile: Path | None) -> Iterator[PlannedJob]:
    """Yield the jobs that a dry run of Snakemake lists."""
    dry_run = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "snakemake", "--dry-run"),
            *("--snakefile", str(PROJECT / "Snakefile")),
            *("--cores", MANY_CORES, "--config", "slides=elsewhere"),
            *(("--configfile", str(configfile)) if configfile else ()),
            *(("--profile", str(profile)) if profile else ()),
        ],
        capture_output=True,
        text=True,
    )
    if dry_run.returncode != 0:
        raise UserError(f"the dry run failed:\n{dry_run.stdout}{dry_run.stderr}")
    jobs = JOB.findall(dry_run.stdout)
    if not jobs and "Nothing to be done" not in dry_run.stdout:
        raise UserError(
            f"the dry run lists no jobs; is `quiet` set in a profile?\n{dry_run.stdout}"
        )
    for _, rule, lines in jobs:
        if any(rule in task_part(name, "planning").PLAN.stages for name in TASKS):
            resources = dict(re.findall(r"([a-z_]+)=([^,\n]*)", _field("resources", lines)))
            nodes = int(resources.get("nodes", 1))
            wildcards = _field("wildcards", lines)
            epoch = re.search(r"epoch=(\d+)", wildcards)
            member = re.search(r"(?:slide|case)=([^,]+)", wildcards)
            yield PlannedJob(
                rule,
                cores=int(_field("threads", lines) or 1),
                gpus=nodes * _gpus_per_node(resources),
                epoch=int(epoch[1]) if epoch else 0,
                member=member[1] if member else "",
            )


def _field(name: str, lines: str) -> str:
    match = re.search(rf"^ *{name}: (.*)$", lines, re.M)
    return match[1] if match else ""


def _gpus_per_node(resources: dict[str, str]) -> int:
    """Return the number in `gres=gpu:4`, `gres=gpu:a100:4`, `gpu=4` or `gpu=a100:4`; else 0."""
    gres = resources.get("gres", "")
    request = gres if gres.startswith("gpu") else resources.get("gpu", "")
    count = request.rpartition(":")[2]
    return int(count) if count.isdecimal() else 0


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs."""
    costs = list(costs)
    return Cost(
        sum(cost.jobs for cost in costs),
        max(cost.seconds for cost in costs),
        sum(cost.core_hours for cost in costs),
        sum(cost.gpu_hours for cost in costs),
        sum(cost.storage for cost in costs),
        False,
    )


def table_row(name: str, cost: Cost) -> str:
    """Return a row of the table."""
    return COLUMNS.format(
        name,
        f"{cost.jobs:,}",
        format_duration(cost.seconds) if name != "total" else "",
        f"{cost.core_hours:,.1f}",
        f"{cost.gpu_hours:,.1f}" if cost.gpu_hours else "",
        f"{cost.storage / 1e9:,.1f}" if cost.storage else "",
        "" if name == "total" else "measured" if cost.measured else "default",
    ).rstrip()


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


if __name__ == "__main__":
    run_command(main)
