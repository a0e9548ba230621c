"""Open the headers of a cohort's files, so that one bad file never stops the others."""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gigatile.cohort.cases import Case
from gigatile.cohort.samples import Sample
from gigatile.cohort.sheet import Member
from gigatile.embeddings.imported import EmbeddingsError, open_imported
from gigatile.embeddings.imported_tiles import ImportedTiles
from gigatile.errors import describe_error
from gigatile.instances.slide_input import plan_input
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.settings.whole import Settings
from gigatile.slides.grid import plan_grid
from gigatile.slides.reader import SlideError, open_slide
from gigatile.slides.scale import find_scale
from gigatile.slides.tiff import check_directories
from gigatile.tasks import find_task
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.case_volumes import CaseVolumes

# A file without an answer for this long is given up; a slide of some GB opens within seconds.
STALL_MINUTES = 2.0
# Files per subprocess: a fork costs as much as opening a few slides.
CHUNK = 25

Check = Callable[[Member], str]


def check_headers(
    members: Sequence[Member],
    settings: Settings,
    threads: int,
    report: Callable[[int], None] = lambda count: None,
    stall_minutes: float = STALL_MINUTES,
) -> list[str]:
    """Open the files of all members; return for each why it would be left out, or an empty text.

    A job may find more: only the headers are read.

    Args:
        members: slides (or their embeddings) or cases with existing files.
        settings: of the run.
        threads: files that are opened at once.
        report: is called with the number of members that were checked.
        stall_minutes: the limit for the files of a member.
    """
    check = functools.partial(header_fault, settings=settings)
    chunks = [members[start : start + CHUNK] for start in range(0, len(members), CHUNK)]
    faults: list[str] = []
    pool = ThreadPoolExecutor(threads)
    try:
        for chunk in pool.map(lambda chunk: check_chunk(chunk, check, stall_minutes), chunks):
            faults += chunk
            report(len(faults))
    finally:
        pool.shutdown(cancel_futures=True)
    return faults


def check_chunk(members: Sequence[Member], check: Check, stall_minutes: float) -> list[str]:
    """Return the fault of each member; the check may hang or crash.

    Then the subprocess ends, and the members before and after the bad one are checked by others.
    """
    if not members:
        return []

    def work(report_progress: Callable[[int], None]) -> list[str]:
        faults = []
        for index, member in enumerate(members):
            report_progress(index)
            faults.append(check(member))
        return faults

    try:
        return run_supervised(work, stall_minutes)
    except Stalled as stop:
        bad, fault = stop.last or 0, f"no answer for {stall_minutes:g} minutes while opening it"
    except Crashed as stop:
        bad, fault = stop.last or 0, f"opening it crashes the library ({stop.by})"
    before = check_chunk(members[:bad], check, stall_minutes)
    return [*before, fault, *check_chunk(members[bad + 1 :], check, stall_minutes)]


def header_fault(member: Member, settings: Settings) -> str:
    """Return why a slide or case would be left out, as far as its headers show; else empty."""
    try:
        if isinstance(member, Sample) and settings.encoder.embedded_with is not None:
            with open_imported(member.path) as embeddings:
                ImportedTiles(member.path, member.id, member.mpp, settings.tiles).describe(
                    embeddings
                )
        elif isinstance(member, Sample):
            with open_slide(member.path) as slide:
                check_directories(member.path, slide)
                scale = find_scale(slide, member.mpp, settings.tiles.objectives)
                if find_task(settings.task).detects_on_slides:
                    requested = settings.slide_instances.mpp or settings.instances.mpp
                    plan_input(slide, scale.mpp, requested, "slide_instances.mpp")
                else:
                    plan_grid(slide, scale.mpp, settings.tiles)
        elif isinstance(member, Case):
            volumes = settings.volumes
            CaseVolumes(member.case, member.images, member.segmentation, volumes).check_headers()
    except (SlideError, EmbeddingsError, VolumeError) as error:
        return str(error)
    except Exception as error:
        text = describe_error(error) or f"{type(error).__name__}: {error}"
        return " ".join(text.split())
    return ""
