"""Reuse of outputs: those of another run are linked, and a repeated job keeps its own.

Two jobs have the same outputs if their code, their settings and the content of their slide are the
same. The record of a job has a digest of the first two (`made_with`) and the fingerprint of the
slide.
"""

import contextlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

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
    source: Path,
    made_with: Sequence[str],
    state: Path,
) -> bool:
    """Return whether this job has already made its outputs, and they are undamaged.

    It has if it belongs to a group that was requeued or tried again after another slide. A slide
    that failed is tried again.

    Args:
        record: path of the record of the job.
        outputs, source, made_with, state: as for `link_outputs`.
    """
    run = run_of(record)
    try:
        recorded = read_output_record(record)
        if recorded is None or recorded.source is None:
            return False
        names = [os.path.relpath(path, run) for path in outputs]
        if _difference(recorded, names, made_with) or any(
            sha256_of(run / name) != recorded.outputs[name].sha256 for name in names
        ):
            return False
        return not _other_slide(state, source, recorded)
    except (UserError, OSError, KeyError, TypeError):
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
    source: Path,
    made_with: Sequence[str],
    state: Path,
) -> str:
    """Hard-link the outputs of the same job of another run.

    No output appears unless all of them have their recorded checksums.

    Args:
        other_run: folder of the run that has them.
        record: path of this job's record; the other one has the same path in its run.
        outputs: the files to create, each in the folder of this run.
        source: the slide's file.
        made_with: code, settings and options of this job.
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
        if fault := _other_slide(other_run / name_of_state, source, recorded):
            return fault
        # The state last, as when a slide is tiled.
        names.sort(key=lambda name: name == name_of_state)
        return _link(other_run, run, names, recorded)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or other_run}: {error.strerror}"
    except (KeyError, TypeError):
        return f"{other_run}: the state of the slide is damaged"


def _difference(recorded: OutputRecord, names: Sequence[str], made_with: Sequence[str]) -> str:
    """Return why the recorded job is not the same as this one; "" if it is."""
    if recorded.made_with is None:
        return "the other run is of a release that did not record the code and the settings"
    if recorded.made_with != digest_of(made_with):
        return "made with other code or settings"
    if sorted(names) != sorted(recorded.outputs):
        return "other outputs are recorded there"
    return ""


def _other_slide(state: Path, source: Path, recorded: OutputRecord) -> str:
    """Return why outputs were not made from this slide; "" if they were."""
    facts = read_json(state)
    if facts["state"] != "tiled":
        return "the slide failed there"
    if facts["source"]["name"] != source.name:
        return f"the slide's file is {facts['source']['name']} there"
    # The state has the content that was tiled, the record that at the end of the job.
    fingerprint = source_record([source]).fingerprint
    tiled = facts["source"]["fingerprint"]
    if recorded.source is None or not fingerprint == recorded.source.fingerprint == tiled:
        return f"{source} is not the slide that was tiled there ({fingerprint})"
    return ""


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
