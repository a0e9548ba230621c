"""What a run would do, in one screen."""

import re
from collections.abc import Sequence
from pathlib import Path

from gigatile.command.snakemake import query_snakemake

# A row of Snakemake's table of jobs: the name of a rule and a number.
ROW = re.compile(r"^(\w+) +(\d+)$")


def print_dry_run(configuration: Path, options: Sequence[str]) -> None:
    """Print the number of jobs by stage.

    Raises:
        UserError: Snakemake refuses to run.
    """
    printed = query_snakemake(configuration, ["--dry-run", "--quiet", "rules", *options])
    counts = job_counts(printed)
    total = counts.pop("total", 0)
    counts.pop("all", None)
    if not total:
        print("nothing to do: all results are up to date")
        return
    for name, count in counts.items():
        print(f"{name.replace('_', ' '):18} {count:>7,} job{'s' if count > 1 else ''}")
    print(f"This was a dry run of {sum(counts.values()):,} jobs; nothing has been changed.")


def job_counts(printed: str) -> dict[str, int]:
    """Return the number of jobs by rule in the output of a dry run, and their `total`."""
    rows = [match for line in printed.splitlines() if (match := ROW.match(line))]
    return {row[1]: int(row[2]) for row in rows}
