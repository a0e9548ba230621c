#!/usr/bin/env python3
"""Hold all of a run against the present settings, sheet and code.

Asks `snakemake --summary` what should be there; tells what is damaged, missing, stale or left over.
"""

import argparse
import csv
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gigatile.errors import UserError, run_command
from gigatile.making.verifying import Expected, summary, table_of, verify, write_findings

# What Snakemake says of a file, in words for people. That it is missing is found anyway.
REASONS = {
    "ok": "",
    "missing": "",
    "params changed": "other settings, code, rows of the sheet, or another content of the slide",
    "set of input files changed": "made from other files",
    "updated input files": "what it is made from has changed",
    "rule implementation changed": "another command",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="results/<run>")
    parser.add_argument("--threads", type=int, default=1, help="files that are read at a time")
    parser.add_argument("--settings", required=True, help="all settings as JSON")
    args = parser.parse_args()
    run = args.run_dir
    found = verify(run, expected(run, args.settings), args.threads)
    write_findings(run, found)
    print(*summary(run, found), sep="\n")
    if found:
        raise UserError(
            f"{run}: {len(found):,} files are not as they should be; {table_of(run)} names all. "
            "The next run makes what is missing or stale, and what is damaged once it was deleted; "
            "docs/reruns.md says more"
        )
    print(f"{run}: everything is current and whole, and nothing is left over")


def expected(run: Path, settings: str) -> Iterator[Expected]:
    """Yield what Snakemake says should be there, and why it is not current."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(settings)
        file.flush()
        asked = subprocess.run(
            ["snakemake", "--summary", "--configfile", file.name], capture_output=True, text=True
        )
    if asked.returncode != 0:
        raise UserError(f"it cannot be told what should be there:\n{asked.stderr}")
    for row in csv.DictReader(asked.stdout.splitlines(), delimiter="\t"):
        path = Path(row["output_file"])
        if path.is_relative_to(run):
            stale = REASONS.get(row["status"], row["status"])
            if row["log-file(s)"] == "-":
                stale = "it is not known how it was made"
            if row["plan"] == "update pending":
                stale = stale or "what it is made from is to be made anew"
            yield Expected(path, row["rule"], stale)


if __name__ == "__main__":
    run_command(main)
