"""The slides that the viewer shows: of the server's jobs, and of runs."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gigatile.cohort.images import ANNOTATIONS
from gigatile.cohort.sheet import Member
from gigatile.errors import UserError
from gigatile.instances.slide_regions import is_geojson
from gigatile.model_files import DESCRIBED
from gigatile.report.viewer_links import viewer_id
from gigatile.serving.errors import RequestError
from gigatile.serving.job_store import DONE
from gigatile.serving.jobs import SLIDE, JobQueue
from gigatile.serving.registry import ModelRegistry
from gigatile.slides.slide_files import fingerprint_of
from gigatile.stores.errors import StoreError
from gigatile.stores.sources import update_version
from gigatile.tables import read_table
from gigatile.tasks import find_task
from gigatile.viewer.layers import PredictedSlide, opener_of, predicted_slide
from gigatile.viewer.outlines import DetectedSlide

_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class ShownSlide:
    """A slide that a model classified, or on which it detected instances.

    Attributes:
        id: in addresses.
        name: for people to read.
        source: the slide's file.
        predicted: its files.
        model, version: that predicted it; the version of the model of a run is 0.
        is_immutable: whether its files never change: those of a job, not those of a run.
        annotations: the file with its annotations; None: there is none.
    """

    id: str
    name: str
    source: Path
    predicted: PredictedSlide | DetectedSlide
    model: str
    version: int
    is_immutable: bool
    annotations: Path | None = None

    def check_source(self) -> None:
        """Check that the file is the one whose tiles were scored.

        Raises:
            UserError: the state of the slide is missing or damaged.
            RequestError: the file was replaced or is missing, or its store does not answer.
        """
        known = self.predicted.state().source.fingerprint
        try:
            update_version(self.source)
            present = fingerprint_of(self.source)
        except StoreError as error:
            code = 404 if error.is_of_file else 503
            raise RequestError(code, f"the slide's store: {error.strerror}") from None
        except OSError:
            raise RequestError(404, "the slide's file is missing") from None
        if present != known:
            raise RequestError(409, "the slide's file is not the one that was predicted")


@dataclass(frozen=True)
class SheetSlide:
    """A slide in a sheet.

    Attributes:
        id: of the slide.
        source: its file.
        annotations: GeoJSON in the column `annotations`, which any sheet may have; None: none.
    """

    id: str
    source: Path
    annotations: Path | None


def slides_of_sheet(sheet: Path, rows: Sequence[Member]) -> list[SheetSlide]:
    """Return the slides of a sheet.

    Args:
        sheet: the file; paths are relative to its folder.
        rows: of the sheet.
    """
    slides = []
    for row in rows:
        cell = row.cells.get(ANNOTATIONS, "")
        path = sheet.parent / cell if is_geojson(Path(cell)) else None
        slides.append(SheetSlide(row.id, row.files[0], path))
    return slides


@dataclass(frozen=True)
class ShownRun:
    """A run whose slides are shown.

    Attributes:
        name: of the run.
        slides: by their ids in addresses.
    """

    name: str
    slides: Mapping[str, ShownSlide]


def open_run(
    folder: Path,
    task: str,
    model: Path,
    cohort: Sequence[SheetSlide],
    new: Sequence[SheetSlide],
    slides: Sequence[SheetSlide] = (),
) -> ShownRun:
    """Return the slides of a run that its model has classified, or on which it detected instances.

    Args:
        folder: of the run, results/<run>.
        task: of the run.
        model: folder of its model: its own, or a bundle.
        cohort: the slides (or images) of its sample sheet; none with a bundle.
        new: the slides of its sheet of new slides.
        slides: the slides of its sheet of slides with instances to detect.

    Raises:
        UserError: the task has no slides to show, or the run has not predicted any of them yet.
    """
    known = find_task(task)
    if known.classifies_slides or known.predicts_outcomes:
        shown = _with_tiles(folder, task, model, cohort, new)
    elif known.detects_on_slides:
        shown = _detected(folder, slides, cohort)
    else:
        raise UserError(f"--run: {folder.name} has the task {task}, which has no slides to show")
    if not shown:
        raise UserError(f"--run: {folder}: no slide of its sheets was evaluated or predicted yet")
    return ShownRun(folder.name, {slide.id: slide for slide in shown})


def _with_tiles(
    folder: Path, task: str, model: Path, cohort: Sequence[SheetSlide], new: Sequence[SheetSlide]
) -> list[ShownSlide]:
    """Return the slides with a prediction that their tiles, or positions of a map, have too."""
    described = model / DESCRIBED
    if not described.is_file():
        raise UserError(f"--run: {folder}: has no model yet; run the workflow first")
    opened = opener_of(task, described)
    shown = []
    for tables, tiles, rows, is_new in (
        (folder / "evaluation", folder / "tiles", cohort, False),
        (folder / "predictions", folder / "predictions" / "tiles", new, True),
    ):
        known = {row.id: row for row in rows}
        path = tables / "slides.tsv"
        for scored in read_table(path, ("slide",)) if path.is_file() else ():
            slide = scored["slide"]
            if slide in known:  # it may have been removed from the sheet since
                id = viewer_id(folder.name, slide, is_new)
                of_slide = opened(tables, tiles, slide)
                shown.append(_of_run(id, known[slide], of_slide, folder.name))
    return shown


def _detected(
    folder: Path, slides: Sequence[SheetSlide], cohort: Sequence[SheetSlide]
) -> list[ShownSlide]:
    # Of a slide that has also regions to train with, these are shown.
    annotated = {image.source.resolve(): image.annotations for image in cohort}
    shown = []
    for row in slides:
        detected = DetectedSlide(folder / "predictions" / "slides", row.id)
        try:
            if detected.state().state != "detected":
                continue
        except UserError:  # not yet
            continue
        id = viewer_id(folder.name, row.id, is_new=True)
        annotations = row.annotations or annotated.get(row.source.resolve())
        row = replace(row, annotations=annotations)
        shown.append(_of_run(id, row, detected, folder.name))
    return shown


def _of_run(
    id: str, row: SheetSlide, predicted: PredictedSlide | DetectedSlide, run: str
) -> ShownSlide:
    return ShownSlide(id, row.id, row.source, predicted, run, 0, False, row.annotations)


class ShownSlides:
    """Finds slides by their ids."""

    def __init__(
        self, models: ModelRegistry, jobs: JobQueue, runs: Sequence[ShownRun] = ()
    ) -> None:
        """Keep where slides come from.

        Args:
            models: of the server.
            jobs: of the server.
            runs: with different names.
        """
        self._models, self._jobs = models, jobs
        self._of_runs = {id: slide for run in runs for id, slide in run.slides.items()}

    def find(self, id: str) -> ShownSlide:
        """Return a slide.

        Raises:
            RequestError: there is no such slide, its job is not done, or the server no longer has
                its model.
        """
        if id in self._of_runs:
            return self._of_runs[id]
        job = self._jobs.store.get(id) if _ID.fullmatch(id) else None
        if job is None:
            raise RequestError(404, "no such job")
        if job.state != DONE:
            raise RequestError(409, f"the job has the state {job.state}")
        bundle = self._models.find(job.model, job.version).bundle
        results = self._jobs.results(job)
        predicted: PredictedSlide | DetectedSlide
        if find_task(bundle.manifest.task).detects_on_slides:
            predicted = DetectedSlide(results / "slides", SLIDE)
        else:
            predicted = predicted_slide(bundle, results, SLIDE)
        return ShownSlide(
            id, job.name, Path(job.source), predicted, job.model, job.version, is_immutable=True
        )

    def of_runs(self) -> list[dict[str, Any]]:
        """Return what a list of the slides of runs shows."""
        tables: dict[Path, dict[str, str]] = {}
        shown = []
        for slide in self._of_runs.values():
            of_slide, predicted = slide.predicted, None
            with contextlib.suppress(UserError):  # the run is being repeated
                if isinstance(of_slide, PredictedSlide):
                    path = of_slide.tables / "slides.tsv"
                    if path not in tables:
                        rows = read_table(path, ("slide", of_slide.column))
                        tables[path] = {row["slide"]: row[of_slide.column] for row in rows}
                    if slide.name in tables[path]:
                        predicted = of_slide.shown(tables[path][slide.name])
                else:
                    predicted = of_slide.summary()
            shown.append(
                {"id": slide.id, "name": slide.name, "run": slide.model, "predicted": predicted}
            )
        return shown
