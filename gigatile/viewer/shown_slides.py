"""The slides that the viewer shows: of the server's jobs, and of runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.cohort.sheet import Member
from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.models.files import DESCRIBED
from gigatile.report.viewer_links import viewer_id
from gigatile.serving.errors import RequestError
from gigatile.serving.job_store import DONE
from gigatile.serving.jobs import SLIDE, JobQueue
from gigatile.serving.registry import ModelRegistry
from gigatile.slides.slide_files import fingerprint_of
from gigatile.tables import read_table
from gigatile.tasks import find_task
from gigatile.viewer.layers import PredictedSlide

_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class ShownSlide:
    """A slide that a model classified.

    Attributes:
        id: in addresses.
        name: for people to read.
        source: the slide's file.
        predicted: its files.
        model, version: that predicted it; the version of the model of a run is 0.
        is_final: whether its files never change: those of a job, not those of a run.
    """

    id: str
    name: str
    source: Path
    predicted: PredictedSlide
    model: str
    version: int
    is_final: bool

    def check_source(self) -> None:
        """Check that the file is the one whose tiles were scored.

        Raises:
            UserError: the state of the slide is missing or damaged.
            RequestError: the file was replaced, or is missing.
        """
        known = self.predicted.state().source.fingerprint
        try:
            present = fingerprint_of(self.source)
        except OSError:
            raise RequestError(404, "the slide's file is missing") from None
        if present != known:
            raise RequestError(409, "the slide's file is not the one that was predicted")


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
    folder: Path, task: str, model: Path, cohort: Sequence[Member], new: Sequence[Member]
) -> ShownRun:
    """Return the slides of a run that its model has classified: test slides and new slides.

    Args:
        folder: of the run, results/<run>.
        task: of the run.
        model: folder of its model: its own, or a bundle.
        cohort: the rows of its sample sheet; none with a bundle.
        new: the rows of its sheet of new slides.

    Raises:
        UserError: the task does not classify slides, or the run has no evaluated model yet.
    """
    if not find_task(task).validates_externally:
        raise UserError(
            f"--run: {folder.name} has the task {task}; the viewer shows slides that "
            "a model classifies"
        )
    described = model / DESCRIBED
    if not described.is_file():
        raise UserError(f"--run: {folder}: has no model yet; run the workflow first")
    classes = read_json(described)["classes"]
    slides = {}
    for tables, tiles, rows, is_new in (
        (folder / "evaluation", folder / "tiles", cohort, False),
        (folder / "predictions", folder / "predictions" / "tiles", new, True),
    ):
        sources = {row.cells[row.unit]: row.files[0] for row in rows}
        table = tables / "slides.tsv"
        for called in read_table(table, ("slide", "call_mean")) if table.is_file() else ():
            slide = called["slide"]
            if slide not in sources:  # removed from the sheet since
                continue
            id = viewer_id(folder.name, slide, is_new)
            predicted = PredictedSlide(
                tables, tiles, slide, classes, is_whole=task == "slide_classification"
            )
            slides[id] = ShownSlide(id, slide, sources[slide], predicted, folder.name, 0, False)
    if not slides:
        raise UserError(f"--run: {folder}: no slide of the sheet was evaluated or predicted yet")
    return ShownRun(folder.name, slides)


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
            RequestError: there is no such slide, its job is not done, or its model does not
                classify slides.
        """
        if id in self._of_runs:
            return self._of_runs[id]
        job = self._jobs.store.get(id) if _ID.fullmatch(id) else None
        if job is None:
            raise RequestError(404, "no such job")
        if job.state != DONE:
            raise RequestError(409, f"the job has the state {job.state}")
        manifest = self._models.find(job.model, job.version).bundle.manifest
        if not find_task(manifest.task).validates_externally:
            raise RequestError(400, "the viewer shows slides that a model classifies")
        results = self._jobs.results(job)
        predicted = PredictedSlide(
            results,
            results / "tiles",
            SLIDE,
            manifest.classes,
            is_whole=manifest.task == "slide_classification",
        )
        return ShownSlide(
            id, job.name, Path(job.source), predicted, job.model, job.version, is_final=True
        )

    def of_runs(self) -> list[dict[str, Any]]:
        """Return what a list of the slides of runs shows."""
        tables: dict[Path, dict[str, str]] = {}
        shown = []
        for slide in self._of_runs.values():
            path = slide.predicted.tables / "slides.tsv"
            if path not in tables:
                try:
                    rows = read_table(path, ("slide", "call_mean"))
                except UserError:  # the run is being repeated
                    rows = []
                tables[path] = {row["slide"]: row["call_mean"] for row in rows}
            predicted = tables[path].get(slide.name)
            shown.append(
                {"id": slide.id, "name": slide.name, "run": slide.model, "predicted": predicted}
            )
        return shown
