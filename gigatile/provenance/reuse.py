"""Reuse of outputs: those of another run are linked, and a repeated job keeps its own.

Two jobs have the same outputs if their code, their settings, the files of the run that they read
and the content of their slide or case are the same. The record of a job has a digest of all but the
last (`made_with`), and the fingerprint of the slide or case.
"""

import contextlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.files import read_json, remove_half_written, sha256_of, temporary_link
from gigatile.provenance.output_records import (
    OutputRecord,
    digest_of,
    read_output_record,
    run_of,
    source_record,
)


def is_done(
    record: Path,
    outputs: Sequence[Path],
    sources: Sequence[Path],
    made_with: Sequence[str],
    state: Path,
) -> bool:
    """Return whether this job has already made its outputs, and they are undamaged.

    It has if it belongs to a group that was requeued or tried again after another slide or case.
    One that failed is tried again.

    Args:
        record: path of the record of the job.
        outputs, made_with, state: as for `link_outputs`.
        sources: the slide's file, or the files of a case; none if all that the job reads are files
            of the run, whose checksums are in `made_with`.
    """
    run = run_of(record)
    try:
        recorded = read_output_record(record)
        if recorded is None:
            return False
        names = [os.path.relpath(path, run) for path in outputs]
        if _difference(recorded, names, made_with) or any(
            sha256_of(run / name) != recorded.outputs[name].sha256 for name in names
        ):
            return False
        return not (_failed(read_json(state)) or _other_source(state, sources, recorded))
    except (UserError, OSError, KeyError, TypeError, AttributeError):
        return False


def forget_made_with(record: Path) -> None:
    """Let a job make its outputs again: the user asked for it (`--forcerun`)."""
    with contextlib.suppress(UserError, OSError):
        recorded = read_output_record(record)
        if recorded is not None and recorded.made_with is not None:
            recorded.model_copy(update={"made_with": None}).write(record)


def link_outputs(
    other_run: Path,
    record: Path,
    outputs: Sequence[Path],
    sources: Sequence[Path],
    made_with: Sequence[str],
    state: Path,
) -> str:
    """Hard-link the outputs of the same job of another run.

    No output appears unless all of them have their recorded checksums.

    Args:
        other_run: folder of the run that has them.
        record: path of this job's record; the other one has the same path in its run.
        outputs: the files to create, each in the folder of this run.
        sources: the slide's file.
        made_with: code, settings and options of this job, and the checksums of the files of the
            run that it reads.
        state: the output that is the state of the slide.

    Returns:
        Why the outputs cannot be reused; "" if they are linked.
    """
    remove_half_written(*outputs)  # of a job that was killed
    run = run_of(record)
    other_record = other_run / record.relative_to(run)
    try:
        recorded = read_output_record(other_record)
        if recorded is None:
            return f"{other_record} does not exist"
        names = [os.path.relpath(path, run) for path in outputs]
        if fault := _difference(recorded, names, made_with):
            return fault
        name_of_state = os.path.relpath(state, run)
        if _failed(read_json(other_run / name_of_state)):
            return "it failed there"
        if fault := _other_source(other_run / name_of_state, sources, recorded):
            return fault
        # The state last, as when a slide is tiled.
        names.sort(key=lambda name: name == name_of_state)
        return _link(other_run, run, names, recorded)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or other_run}: {error.strerror}"
    except (KeyError, TypeError, AttributeError):
        return f"{other_run}: its state is damaged there"


def _difference(recorded: OutputRecord, names: Sequence[str], made_with: Sequence[str]) -> str:
    """Return why the recorded job is not the same as this one; "" if it is."""
    if recorded.made_with is None:
        return "the other run is of a release that did not record the code and the settings"
    if recorded.made_with != digest_of(made_with):
        return "made with other code or settings"
    if sorted(names) != sorted(recorded.outputs):
        return "other outputs are recorded there"
    return ""


def _failed(facts: dict[str, Any]) -> bool:
    # Of images that are prepared together, each has a state. Bad ones are not tried again: all of
    # the others would be, too.
    return "images" not in facts and facts["state"] == "failed"


def _other_source(state: Path, sources: Sequence[Path], recorded: OutputRecord) -> str:
    """Return why outputs were not made from this slide or case; "" if they were.

    The state has the content that was read, and the record that at the end of the job.
    """
    if not sources:
        return "" if recorded.source is None else "another source is recorded there"
    present = source_record(sources).fingerprint
    if recorded.source is None or present != recorded.source.fingerprint:
        return f"{sources[0]} is not the file that was read there ({present})"
    facts = read_json(state)
    read = [facts["source"]] if "source" in facts else _sources_of(facts)
    fingerprints = (
        [present]
        if len(sources) == 1
        else [source_record([source]).fingerprint for source in sources]
    )
    now = sorted(set(zip((source.name for source in sources), fingerprints, strict=True)))
    then = sorted({(file["name"], file["fingerprint"]) for file in read})
    if now != then:
        return f"it was made from {_listed(then)}, and now there is {_listed(now)}"
    return ""


def _sources_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the files of a case, or of all images of a part."""
    members = facts.get("images", [facts])
    return [file for member in members for file in member["sources"].values()]


def _listed(files: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({fingerprint})" for name, fingerprint in files)


def _link(other_run: Path, run: Path, names: Sequence[str], recorded: OutputRecord) -> str:
    """Link files if all have their recorded checksums; return the first that has not."""
    with ExitStack() as stack:
        links = {}
        for name in names:
            links[name] = stack.enter_context(temporary_link(other_run / name, run / name))
            # A link has the mode of its file, and Snakemake refuses to replace a protected output.
            if not os.access(links[name], os.W_OK):
                return f"no permission to write {other_run / name}"
            # Compare the link, not the file: the other run may replace its file meanwhile.
            if sha256_of(links[name]) != recorded.outputs[name].sha256:
                return f"damaged: {other_run / name}"
        for name, link in links.items():
            link.replace(run / name)
    return ""
