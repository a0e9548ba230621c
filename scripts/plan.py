#!/usr/bin/env python3
"""Tell what a run will take: jobs, hours of cores and GPUs, storage, and the longest chain.

It needs the sample sheet and not the slides. Speeds are those of earlier runs in results/, where
they lasted long enough to tell, else defaults.
"""

import argparse
import math
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from snakemake.utils import update_config

from gigatile.cohort.splits import assign
from gigatile.errors import UserError, run_command
from gigatile.making.costs import (
    MEGAVOXELS,
    STAGES,
    TILES_PER_SLIDE,
    Cohort,
    Cost,
    Planned,
    costs,
    longest_chain,
    measured,
    megapixels_of,
)
from gigatile.settings.split import SPLITS
from gigatile.settings.whole import Settings, load_settings
from gigatile.tasks.sheets import read_any_sheet

# More cores than any job asks for; with fewer Snakemake would plan it smaller.
MANY = "1000000"
# A job as a dry run prints it; where several share one, it stands further in.
JOB = re.compile(r"^( *)(?:local)?rule (\w+):\n((?:\1 {4}.*\n)+)", re.MULTILINE)
COLUMNS = "{:17} {:>7} {:>10} {:>11} {:>10} {:>10}  {}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configfile", type=Path, help="the run's own settings")
    parser.add_argument("--profile", type=Path, help="of the cluster that it is to run on")
    parser.add_argument(
        "--tiles-per-slide",
        type=int,
        default=TILES_PER_SLIDE,
        help="before any is cut (%(default)s)",
    )
    parser.add_argument(
        "--megavoxels-per-case",
        type=float,
        default=MEGAVOXELS,
        help="before any is prepared (%(default)s)",
    )
    args = parser.parse_args()
    if args.tiles_per_slide < 1:
        parser.error(f"--tiles-per-slide: found {args.tiles_per_slide}; must be 1 or more")
    if args.megavoxels_per_case <= 0:
        parser.error(f"--megavoxels-per-case: found {args.megavoxels_per_case}; must be above 0")
    settings = settings_of(args.configfile)
    jobs = list(planned(args.configfile, args.profile))
    cohort = cohort_of(settings, args.tiles_per_slide, args.megavoxels_per_case)
    found = costs(jobs, cohort, measured(Path("results"), settings.train.model, cohort.unit))
    if not found:
        print("nothing is to be done")
        return
    print(COLUMNS.format("stage", "jobs", "longest", "core-hours", "GPU-hours", "GB", "speed"))
    for name, cost in found.items():
        print(line(name, cost))
    print(line("total", total(found.values())))
    seconds, chain = longest_chain(found, cohort.unit)
    print(f"longest chain: {duration(seconds)} ({', '.join(chain)})")


def settings_of(configfile: Path | None) -> Settings:
    """Return the settings as Snakemake does."""
    config: dict = {}
    for path in (Path("config.yaml"), configfile):
        if path is not None:
            try:
                found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            except FileNotFoundError:
                raise UserError(f"{path}: no such configuration") from None
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise UserError(f"{path}: no YAML in UTF-8 ({error})") from None
            if not isinstance(found, dict):
                raise UserError(f"{path}: found {found!r}; must be settings, as in config.yaml")
            update_config(config, found)
    return load_settings(config, str(configfile or "config.yaml"))


def cohort_of(settings: Settings, tiles_per_slide: int, megavoxels_per_case: float) -> Cohort:
    """Return what the jobs are about."""
    members = read_any_sheet(Path(settings.samples), may_be_missing=lambda path: True)
    split_of = assign(members, settings.split)
    splits = [split_of[member.patient] for member in members]
    counts = {split: splits.count(split) for split in SPLITS}
    new = settings.predict.samples
    counts["new"] = len(read_any_sheet(Path(new), False, lambda path: True)) if new else 0
    if settings.task == "volume_segmentation":
        unit, assumed = "case", megavoxels_per_case
        shown = settings.patches.per_case * math.prod(settings.patches.size) / 1e6
    else:
        unit, assumed = "slide", tiles_per_slide * settings.tiles.size**2 / 1e6
        shown = None
    return Cohort(
        counts,
        megapixels_of(Path("results") / settings.run) or assumed,
        settings.train.segments,
        settings.train.model,
        settings.train.ranks,
        unit,
        shown,
    )


def planned(configfile: Path | None, profile: Path | None) -> Iterator[Planned]:
    """Yield the jobs that Snakemake says are to run."""
    asked = subprocess.run(
        [
            *("snakemake", "--dry-run", "--cores", MANY, "--config", "slides=elsewhere"),
            *(("--configfile", str(configfile)) if configfile else ()),
            *(("--profile", str(profile)) if profile else ()),
        ],
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        raise UserError(f"the plan cannot be made:\n{asked.stdout}{asked.stderr}")
    jobs = JOB.findall(asked.stdout)
    if not jobs and "Nothing to be done" not in asked.stdout:
        raise UserError(
            f"no job can be read from the plan; is `quiet` set in a profile?\n{asked.stdout}"
        )
    for _, rule, told in jobs:
        if any(rule in stages for stages in STAGES.values()):
            resources = dict(re.findall(r"([a-z_]+)=([^,\n]*)", _field("resources", told)))
            nodes = int(resources.get("nodes", 1))
            epoch = re.search(r"epoch=(\d+)", _field("wildcards", told))
            yield Planned(
                rule,
                cores=int(_field("threads", told) or 1),
                gpus=nodes * _gpus_of_a_node(resources),
                epoch=int(epoch[1]) if epoch else 0,
            )


def _field(name: str, told: str) -> str:
    found = re.search(rf"^ *{name}: (.*)$", told, re.M)
    return found[1] if found else ""


def _gpus_of_a_node(resources: dict[str, str]) -> int:
    """Return what `gres=gpu:4`, `gres=gpu:a100:4`, `gpu=4` or `gpu=a100:4` asks for."""
    generic = resources.get("gres", "")
    asked = generic if generic.startswith("gpu") else resources.get("gpu", "")
    count = asked.rpartition(":")[2]
    return int(count) if count.isdecimal() else 0


def total(found: Iterable[Cost]) -> Cost:
    """Return the sum of what stages take."""
    found = list(found)
    return Cost(
        sum(one.jobs for one in found),
        max(one.seconds for one in found),
        sum(one.core_hours for one in found),
        sum(one.gpu_hours for one in found),
        sum(one.left for one in found),
        False,
    )


def line(name: str, cost: Cost) -> str:
    """Return a row of the table."""
    return COLUMNS.format(
        name,
        f"{cost.jobs:,}",
        duration(cost.seconds) if name != "total" else "",
        f"{cost.core_hours:,.1f}",
        f"{cost.gpu_hours:,.1f}" if cost.gpu_hours else "",
        f"{cost.left / 1e9:,.1f}" if cost.left else "",
        "" if name == "total" else "measured" if cost.measured else "default",
    ).rstrip()


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


if __name__ == "__main__":
    run_command(main)
