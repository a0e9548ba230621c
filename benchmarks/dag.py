#!/usr/bin/env python3
"""Time and memory of a plan: the workflow compared with a bare Snakefile with as many jobs.

Three plans, each a dry run: of a new cohort, of a complete one, and of the complete one with one
more slide. The bare Snakefile has the same files and edges for the slides and nothing else: no
parameters, no settings, no sheet to check. The slides are files of a few bytes. The results are
written directly, with the metadata and records of a run. Rounds alternate; processor time is
compared.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from snakemake.api import SnakemakeApi
from snakemake.settings.enums import Quietness
from snakemake.settings.types import (
    ConfigSettings,
    DAGSettings,
    ExecutionSettings,
    OutputSettings,
    ResourceSettings,
    StorageSettings,
)

from gigatile.provenance.output_records import record_path, write_output_record
from gigatile.provenance.packs import pack_records

ROOT = Path(__file__).parents[1]
SNAKEMAKE = Path(sys.executable).parent / "snakemake"
# The files that Snakemake reads: no command of a rule runs here.
PARTS = ("Snakefile", "config.yaml", "rules", "scripts", "gigatile", "envs", "profiles")
HEAD = "slide\tpatient\tlabel\tpath\n"
BARE = """
SLIDES = [line.split("\\t")[0] for line in open("cohort/samples.tsv")][1:]
TILES = "bare/tiles/{slide}"


rule all:
    input:
        "bare/report.html",


rule tile:
    input:
        "cohort/{slide}.svs",
    output:
        TILES + ".tfrecord",
        TILES + ".json",
        TILES + ".jpg",
    shell:
        "tile {input} {output}"


rule collect:
    input:
        expand(TILES + ".json", slide=SLIDES),
    output:
        "bare/tiles.tsv",
    shell:
        "collect {output}"


rule report:
    input:
        "bare/tiles.tsv",
    output:
        "bare/report.html",
    shell:
        "report {input} {output}"
"""
WAYS = {
    "gigatile": ("--configfile", "big.yaml"),
    "bare": ("--snakefile", "bare.smk", "--workflow-profile", "none"),
}
# All outputs after tiling, in an order in which a run could write them.
LATER = (
    *("splits.tsv", "splits.json", "tiles.tsv", "states.tsv"),
    *("shards/slides.tsv", "shards/manifest.json"),
    *(f"segments/{e}.{kind}" for e in ("0004", "0008") for kind in ("npz", "keras", "json")),
    *("segments/0004.valid.json", "segments/0008.valid.json", "model/model.keras"),
    *("model/history.tsv", "model/settings.json", "model/versions.json"),
    *("evaluation/tiles.parquet", "evaluation/slides.tsv", "evaluation/metrics.json"),
    "report/index.html",
)


def row(number: int) -> str:
    """Return the row of a slide in the sheet."""
    slide, label = f"S{number:06d}", ("luad", "lusc")[number % 2]
    return f"{slide}\tP{number // 2:06d}\t{label}\t{slide}.svs\n"


def make_cohort(folder: Path, slides: int) -> None:
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    (folder / "cohort").mkdir()
    for number in range(slides):
        # The sizes differ: the same file under two patients would be refused.
        with (folder / f"cohort/S{number:06d}.svs").open("wb") as slide:
            slide.truncate(1 + number)
    sheet = folder / "cohort/samples.tsv"
    sheet.write_text(HEAD + "".join(map(row, range(slides))))
    (folder / "big.yaml").write_text("run: big\nsamples: cohort/samples.tsv\n")
    (folder / "bare.smk").write_text(BARE)


def make_results(folder: Path, slides: int) -> None:
    """Write all results, as after a run."""
    for run in ("results/big", "bare"):
        (folder / run / "tiles").mkdir(parents=True)
        for number in range(slides):
            files = [folder / run / f"tiles/S{number:06d}.{k}" for k in ("tfrecord", "json", "jpg")]
            for file in files:
                file.touch()
            if run != "bare":
                record = record_path(folder / run, "tile", f"S{number:06d}")
                write_output_record(record, files, [folder / f"cohort/S{number:06d}.svs"])
        if run != "bare":
            packed = [f"S{number:06d}" for number in range(slides)]
            pack_records(folder / run / "provenance/tile", packed)
        later = [
            folder / run / n for n in (LATER if run != "bare" else ("tiles.tsv", "report.html"))
        ]
        for file in later:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    (folder / "results/big/report/slides").mkdir()
    (folder / "results/.snakemake-metadata").mkdir()
    for way in WAYS:
        subprocess.run([sys.executable, __file__, "--record", way], cwd=folder, check=True)


def record_as_after_a_run(way: str) -> None:
    """Let Snakemake record all jobs of the plan as done, in the current folder."""
    snakefile, config = ("Snakefile", ["big.yaml"]) if way == "gigatile" else ("bare.smk", [])
    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        # The public API only prints a plan; its internals give access to the jobs.
        workflow = api.workflow(
            ResourceSettings(cores=1),
            ConfigSettings(configfiles=[Path(name) for name in config]),
            storage_settings=StorageSettings(),
            snakefile=Path(snakefile),
        )
        dag = workflow.dag(DAGSettings(forceall=True, max_checksum_file_size=10**7))
        inner = dag.workflow_api._workflow
        inner.dag_settings, inner.execution_settings = dag.dag_settings, ExecutionSettings()
        inner._prepare_dag(forceall=True, ignore_incomplete=True, lock_warn_only=False)
        inner._build_dag()

        async def record_all() -> None:
            for job in inner.dag.jobs:
                await inner.persistence.finished(job)

        inner.async_run(record_all())


def run_process(folder: Path, *line: str | Path) -> tuple[float, float, str]:
    """Run a command; return its processor time in seconds, its peak memory in MB and its output."""
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(line, cwd=folder, stdout=printed, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read()
    assert process.returncode == 0, text
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, text


def compare(folder: Path, plan: str, expected: int, rounds: int) -> None:
    """Time a plan of both Snakefiles, and check the number of tiling jobs."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    peak: dict[str, float] = {}
    for _ in range(rounds):
        for way, options in WAYS.items():
            used, megabytes, text = run_process(
                folder, SNAKEMAKE, "-n", "--quiet", "rules", *options
            )
            tiling = [line for line in text.splitlines() if line.split()[:1] == ["tile"]]
            jobs = int(tiling[0].split()[1]) if tiling else 0
            assert jobs == expected, f"{way}: {jobs} tile jobs, expected {expected}"
            seconds[way].append(used)
            peak[way] = max(peak.get(way, 0), megabytes)
    ours, bare = (statistics.median(times) for times in seconds.values())
    print(
        f"  {plan:16} {ours:6.1f} s, {peak['gigatile']:5.0f} MB; bare {bare:6.1f} s, "
        f"{peak['bare']:5.0f} MB; gigatile / bare: {ours / bare:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slides", type=int, nargs="+", default=[1000, 10_000, 30_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.record:
        record_as_after_a_run(args.record)
        return
    for slides in args.slides:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_cohort(folder, slides)
            print(f"{slides:,} slides, median of {args.rounds}, seconds of the processor:")
            compare(folder, "new cohort", slides, args.rounds)
            make_results(folder, slides)
            compare(folder, "complete", 0, args.rounds)
            with (folder / "cohort/samples.tsv").open("a") as sheet:
                sheet.write(row(slides))
            (folder / f"cohort/S{slides:06d}.svs").write_text("a slide")
            compare(folder, "one more slide", 1, args.rounds)


if __name__ == "__main__":
    main()
