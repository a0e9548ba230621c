"""Verify the results of a run: every file is current, has its recorded bytes, and is expected."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gigatile.errors import UserError
from gigatile.provenance.output_records import (
    FOLDER,
    FileRecord,
    files_in,
    is_removable,
    read_output_record,
)
from gigatile.provenance.packs import SUFFIX as PACK_SUFFIX
from gigatile.provenance.packs import packed_records
from gigatile.stores.addresses import address_of, is_address, is_remote, parse_address
from gigatile.stores.errors import StoreError
from gigatile.stores.sources import sha256_of, size_and_time
from gigatile.tables import write_table

STATES = ("damaged", "missing", "stale", "left over")
# Folders that are no output of any rule: TensorBoard's logs, checkpoints of unfinished training.
IGNORED = ("tensorboard", "checkpoints")
# Prefix of Snakemake's own files in output folders.
SNAKEMAKE_PREFIX = ".snakemake"
# Number of files that the summary lists per group; the table lists all.
MAX_LISTED = 3


@dataclass(frozen=True)
class ExpectedOutput:
    """A file or folder that the present settings, sheet and code produce.

    Attributes:
        path: of the output.
        stage: the rule that produces it.
        stale: why it must be made again; empty if it is current.
    """

    path: Path
    stage: str
    stale: str = ""


@dataclass(frozen=True)
class Finding:
    """A file that is not as it should be, and the reason."""

    state: str
    stage: str
    path: Path
    reason: str


def verify(run: Path, expected: Iterable[ExpectedOutput], threads: int = 1) -> list[Finding]:
    """Compare all files of a run with the expected outputs and with the records.

    Args:
        run: folder of the run.
        expected: all outputs.
        threads: number of files that are read at the same time.

    Returns:
        What is wrong, sorted by state (in the order of `STATES`), stage, reason and path.
    """
    outputs = {output.path: output for output in expected}
    records, findings = _read_records(run)
    record_of = _records_by_file(run, records, outputs)
    stage_of = {record_of[path]: out.stage for path, out in outputs.items() if path in record_of}
    for path, output in outputs.items():
        if path in record_of or (path.is_dir() and not any(path.iterdir())):
            continue
        if path.exists():
            findings.append(Finding("stale", output.stage, path, "its checksum is not recorded"))
        else:
            findings.append(Finding("missing", output.stage, path, "no such file"))
    files = [(record, file) for record in stage_of for file in records[record]]
    with ThreadPoolExecutor(threads) as pool:
        faults = list(pool.map(lambda pair: _compare(run, pair[1], records[pair[0]]), files))
    incomplete = set()
    for (record, file), fault in zip(files, faults, strict=True):
        if fault:
            incomplete.add(record)
            findings.append(Finding(fault[0], stage_of[record], file, fault[1]))
    findings += [
        Finding("stale", output.stage, path, output.stale)
        for path, output in outputs.items()
        # If an output of a job is damaged, the job runs again anyway.
        if output.stale and path in record_of and record_of[path] not in incomplete
    ]
    known = {*outputs, *stage_of, *(file for _, file in files), *(item.path for item in findings)}
    known |= set(_logs(run, outputs.values(), stage_of))
    findings += _left_over(run, known)
    return sorted(
        findings, key=lambda item: (STATES.index(item.state), item.stage, item.reason, item.path)
    )


def _read_records(run: Path) -> tuple[dict[Path, dict[Path, FileRecord]], list[Finding]]:
    """Return the recorded files by record, and the records that are damaged."""
    records: dict[Path, dict[Path, FileRecord]] = {}
    findings = []
    paths: set[Path] = set()
    for path in files_in([run / FOLDER]) if (run / FOLDER).is_dir() else ():
        if path.suffix != PACK_SUFFIX:
            paths.add(path)
            continue
        try:
            paths.update(path.with_suffix("") / f"{job}.json" for job in packed_records(path))
        except UserError:
            findings.append(Finding("damaged", FOLDER, path, "not readable"))
    for path in sorted(paths):
        try:
            record = read_output_record(path)
        except UserError:
            findings.append(Finding("damaged", FOLDER, path, "not readable"))
        else:
            outputs = record.outputs if record else {}
            records[path] = {
                parse_address(name) if is_address(name) else run / name: output
                for name, output in outputs.items()
            }
    return records, findings


def _records_by_file(
    run: Path,
    records: Mapping[Path, Mapping[Path, FileRecord]],
    outputs: Mapping[Path, ExpectedOutput],
) -> dict[Path, Path]:
    """Return the record of each file, and of each folder that contains recorded files.

    A record that a renamed stage has left may contain a file, too: the record of the stage that
    produces the file now takes precedence.
    """
    by_file: dict[Path, Path] = {}
    for record, files in records.items():
        by_file |= {file.parent: record for file in files}
    for record, files in records.items():
        by_file |= dict.fromkeys(files, record)
    for record, files in records.items():
        stage = record.relative_to(run / FOLDER).parts[0].removesuffix(".json")
        for file in files:
            for path in (file.parent, file):
                if path in outputs and outputs[path].stage == stage:
                    by_file[path] = record
    return by_file


def _compare(run: Path, path: Path, recorded: Mapping[Path, FileRecord]) -> tuple[str, str] | None:
    """Return the state of a file that differs from its record, and the reason."""
    try:
        size = size_and_time(path)[0]
        if size != recorded[path].bytes:
            return "damaged", f"{size:,} bytes, recorded {recorded[path].bytes:,}"
        if sha256_of(path) != recorded[path].sha256:
            return "damaged", "its content differs from the recorded checksum"
    except StoreError as error:
        return "missing" if error.is_of_file else "damaged", str(error.strerror)
    except FileNotFoundError:
        return "missing", "moved away" if is_removable(path, run) else "no such file"
    except OSError as error:
        return "damaged", f"cannot be read: {error.strerror}"
    return None


def _logs(
    run: Path, expected: Collection[ExpectedOutput], records: Iterable[Path]
) -> Iterator[Path]:
    """Yield logs, benchmarks and packed records of jobs, and the files of this verification."""
    for stage in {output.stage for output in expected}:
        yield (run / FOLDER / stage).with_suffix(PACK_SUFFIX)
    jobs = {str(record.relative_to(run / FOLDER).with_suffix("")) for record in records}
    for output in expected:  # a job that failed has no record
        jobs |= {output.stage, f"{output.stage}/{output.path.stem}"}
    for job in jobs:
        yield run / f"logs/{job}.log"
        yield run / f"benchmarks/{job}.tsv"
    yield table_of(run)
    yield table_of(run).with_suffix(".log")


def _left_over(run: Path, known: set[Path]) -> Iterator[Finding]:
    for path in files_in([run]) if run.is_dir() else ():
        folder = path.relative_to(run).parts[0]
        if (
            path not in known
            and folder not in IGNORED
            and not path.name.startswith(SNAKEMAKE_PREFIX)
        ):
            yield Finding("left over", folder, path, "no job makes it")


def table_of(run: Path) -> Path:
    """Return the path of the table that `write_findings` writes."""
    return run / "logs/verify.tsv"


def write_findings(run: Path, findings: Iterable[Finding]) -> None:
    """Write a table of the findings, a row per file."""
    rows = ((item.state, item.stage, _name(item.path, run), item.reason) for item in findings)
    write_table(table_of(run), ("state", "stage", "file", "reason"), rows)


def _name(path: Path, run: Path) -> str:
    """Return a path in the run, or an address."""
    return address_of(path) if is_remote(path) else str(path.relative_to(run))


def summary(run: Path, findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a line for each state, stage and reason, with the first files."""
    groups = groupby(findings, key=lambda item: (item.state, item.stage, item.reason))
    for (state, stage, reason), items in groups:
        names = [_name(item.path, run) for item in items]
        more = f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else ""
        yield f"{state:9}  {stage}: {reason}: {', '.join(names[:MAX_LISTED])}{more}"
