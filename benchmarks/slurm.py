#!/usr/bin/env python3
"""Time lost between jobs: Snakemake with profiles/slurm against SLURM's own dependencies.

A chain of jobs that do nothing for a while is run twice on the test cluster: as rules under the
profile, and as `sbatch --dependency` without Snakemake, which is the floor. What
counts is the time from a job's end to its successor's start, as SLURM's accounting has it, and how
long a job takes beyond its command.

The executor looks at the queue 30 s after a start, then 40 s, 50 s, … later, 180 s at most: what is
lost depends on where between two looks a job ends. Needs root and SLURM, as `make cluster-up`.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from cluster import Cluster, missing  # noqa: E402

SNAKEFILE = """\
rule last:
    input: "{links}"

rule first:
    output: "0"
    shell: "sleep {seconds}; echo > {{output}}"

rule link:
    input: lambda w: str(int(w.n) - 1)
    output: "{{n,[1-9]}}"
    shell: "sleep {seconds}; echo > {{output}}"
"""


def links_of(cluster: Cluster, jobs: list[str], seconds: float) -> tuple[list[float], list[float]]:
    """Return seconds: between each job and the next, and of each job beyond its command."""
    # Accounting hears of an end a moment later.
    cluster.wait_for(
        f'test "$(sacct -X -n -P -j {",".join(jobs)} -o state | grep -c COMPLETED)" = {len(jobs)}'
    )
    spans = []
    for line in cluster.run(f"sacct -X -n -P -j {','.join(jobs)} -o start,end").stdout.split():
        start, end = (datetime.fromisoformat(stamp) for stamp in line.split("|"))
        spans.append((start, end))
    spans.sort()
    gaps = [
        (after - before).total_seconds() for (_, before), (after, _) in itertools.pairwise(spans)
    ]
    return gaps, [(end - start).total_seconds() - seconds for start, end in spans]


def with_snakemake(cluster: Cluster, folder: Path, links: int, seconds: float) -> list[str]:
    """Run the chain as rules; return the numbers of its jobs."""
    (folder / "Snakefile").write_text(SNAKEFILE.format(links=links, seconds=seconds))
    shown = cluster.run(
        f"cd {folder} && PATH={Path(sys.executable).parent}:$PATH snakemake"
        f" --profile {ROOT}/profiles/slurm --default-resources"
        " slurm_account='\"lab\"' slurm_partition='\"cpu\"' mem_mb=500 runtime=10",
        timeout=3600,
    )
    text = shown.stdout + shown.stderr
    return [
        word.rstrip(".") for word in text.split("SLURM jobid ")[1:] for word in word.split()[:1]
    ]


def with_dependencies(cluster: Cluster, links: int, seconds: float) -> list[str]:
    """Run the chain as SLURM's own; return the numbers of its jobs."""
    jobs: list[str] = []
    for _ in range(links + 1):
        after = f"--dependency=afterok:{jobs[-1]}" if jobs else ""
        call = f"sbatch --parsable -A lab -p cpu -t 10 --mem 500 -o /dev/null {after}"
        jobs.append(cluster.run(f"{call} --wrap 'srun sleep {seconds}'").stdout.strip())
    cluster.wait_for(f'test -z "$(squeue -h -j {jobs[-1]} 2>/dev/null)"', 3600)
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--links", type=int, default=3, help="successors in the chain")
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[5, 60], help="how long each command takes"
    )
    args = parser.parse_args()
    reason = missing()
    if reason:
        print(f"skipped, no test cluster: {reason}")
        return
    cluster = Cluster.start()
    try:
        print("          | end to next start        | in a job, without the command")
        print("command   | SLURM alone, Snakemake   | SLURM alone, Snakemake")
        for seconds in args.seconds:
            with tempfile.TemporaryDirectory() as folder:
                jobs = with_snakemake(cluster, Path(folder), args.links, seconds)
                gaps, extra = links_of(cluster, jobs, seconds)
            jobs = with_dependencies(cluster, args.links, seconds)
            floor, floor_extra = links_of(cluster, jobs, seconds)
            print(
                f"{seconds:7.0f} s | {statistics.median(floor):5.1f} s"
                f" {statistics.median(gaps):5.1f} s ({min(gaps):.0f}-{max(gaps):.0f})"
                f" | {statistics.median(floor_extra):5.1f} s {statistics.median(extra):5.1f} s",
                flush=True,
            )
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
