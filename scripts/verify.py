#!/usr/bin/env python3
"""Compare all files of a run with the present settings, sheet and code.

Lists damaged, missing, stale and left-over files. `snakemake --summary` says which files are
expected.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gigatile.errors import UserError, run_command
from gigatile.provenance.verification import (
    ExpectedOutput,
    summary,
    table_of,
    verify,
    write_findings,
)

SNAKEFILE = Path(__file__).resolve().parents[1] / "Snakefile"
# Reasons by the status that Snakemake reports. Missing files are a separate finding.
REASONS = {
    "ok": "",
    "missing": "",
    "params changed": "the settings, code, rows of the sheet or content of the slide have changed",
    "set of input files changed": "made from other files",
    "updated input files": "an input has changed",
    "rule implementation changed": "the command has changed",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="results/<run>")
    parser.add_argument("--threads", type=int, default=1, help="files to read at the same time")
    parser.add_argument("--settings", required=True, help="all settings as JSON")
    args = parser.parse_args()
    run = args.run_dir
    findings = verify(run, expected_outputs(run, args.settings), args.threads)
    write_findings(run, findings)
    print(*summary(run, findings), sep="\n")
    if findings:
        raise UserError(
            f"{run}: {len(findings):,} files are damaged, missing, stale or left over; "
            f"{table_of(run)} lists them. The next run makes missing and stale files, and damaged "
            "files after you have deleted them; see docs/reruns.md"
        )
    print(f"{run}: all files are current and undamaged, and none is left over")


def expected_outputs(run: Path, settings: str) -> Iterator[ExpectedOutput]:
    """Yield the outputs that Snakemake expects, and why they are not current."""
    # Made on request only: expected if it was made.
    bundle = run / "model/bundle"
    targets = ["all", str(bundle)] if bundle.exists() else []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(settings)
        file.flush()
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "snakemake", *targets, "--summary"),
                *("--snakefile", str(SNAKEFILE), "--configfile", file.name),
            ],
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise UserError(f"`snakemake --summary` failed:\n{done.stderr}")
    for row in csv.DictReader(done.stdout.splitlines(), delimiter="\t"):
        path = Path(row["output_file"])
        if path.is_relative_to(run):
            stale = REASONS.get(row["status"], row["status"])
            if row["log-file(s)"] == "-":
                stale = "there are no metadata about how it was made"
            if row["plan"] == "update pending":
                stale = stale or "an input will be made again"
            yield ExpectedOutput(path, row["rule"], stale)


if __name__ == "__main__":
    run_command(main)
