"""The parts of a report that a task provides, and the run that its sections describe."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import SplitProof
from gigatile.evaluation.metrics_file import Metrics
from gigatile.records.manifest import Manifest
from gigatile.report.appearance import Appearances
from gigatile.report.inputs import CohortRow, ScoredRow, TrainedModel
from gigatile.report.leakage import Check
from gigatile.report.provenance import Ledger
from gigatile.report.records import RecordKind
from gigatile.report.unit_pages import WritePage

State = TypeVar("State")
Scored = TypeVar("Scored", bound=ScoredRow)
Model = TypeVar("Model", bound=TrainedModel)
Measured = TypeVar("Measured", bound=Metrics)


@dataclass(frozen=True, kw_only=True)
class Run(Generic[State, Scored, Model, Measured]):
    """A run, read and checked.

    Attributes:
        unit: `slide` or `case`.
        files: the inputs of the report, by the names in `TaskReport.inputs`.
        cohort: the rows of the cohort's table.
        states: the state of each slide or case, by its id.
        sheet: the rows of the sample sheet; None: it was not given.
        manifest: of the shards.
        scored: the test slides or cases, in the order of the evaluation.
        history: for each column of history.tsv, a value for each epoch.
        versions: of the software that trained the model.
        ledger: the files of the report with their checksums.
        checks: the checks for leakage.
        group_by: columns of the sheet whose values are compared.
        compare: folder of the other run for the comparison of maps; None: none.
        appearances: how the scored slides or cases look, compared with train and valid.
        not_scored: why usable test slides or cases were not scored, by id.
    """

    unit: str
    files: Mapping[str, Path]
    cohort: Sequence[CohortRow]
    states: Mapping[str, State]
    splits: SplitProof
    sheet: Sequence[Member] | None
    manifest: Manifest
    scored: Sequence[Scored]
    model: Model
    metrics: Measured
    history: Mapping[str, Sequence[float]]
    versions: Mapping[str, Any]
    ledger: Ledger
    checks: Sequence[Check] = ()
    group_by: Sequence[str] = ()
    compare: Path | None = None
    appearances: Appearances = field(default_factory=lambda: Appearances(0))
    not_scored: Mapping[str, str] = field(default_factory=dict)

    def left_out(self) -> list[tuple[CohortRow, str]]:
        """Return the slides or cases that count in no metric, each with the reason."""
        scored = {row.id for row in self.scored}
        rows = []
        for row in self.cohort:
            if row.state == "failed" or not row.records:
                rows.append((row, row.reason or "no reason was recorded"))
            elif row.split == "test" and row.id not in scored:
                default = f"a usable test {self.unit}, but the evaluation did not score it"
                rows.append((row, self.not_scored.get(row.id, default)))
        return rows


@dataclass(frozen=True)
class Banner:
    """A warning at the top of the first page.

    Attributes:
        items: a list under the text.
        link: the anchor of the section with the details, and the text of the link.
        alarm: True: the metrics must not be used.
    """

    title: str
    text: str
    items: Sequence[str] = ()
    link: tuple[str, str] | None = None
    alarm: bool = False


@dataclass(frozen=True)
class Content:
    """The content of a section: the values of its template, and its warnings."""

    values: Mapping[str, Any] = field(default_factory=dict)
    banners: Sequence[Banner] = ()


@dataclass(frozen=True)
class Section:
    """A section of the first page.

    Attributes:
        anchor: the id of its heading.
        title: its heading.
        template: the file that renders its content.
        content: returns the content from the run; None: the report does not have the section.
        link: its name in the list of sections; empty: the title.
    """

    anchor: str
    title: str
    template: Path
    content: Callable[[Any], Content | None]
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class NewSamples:
    """The pages of new slides or cases, which have no label or reference segmentation.

    Attributes:
        template: renders the first page; it extends predictions.html.j2.
        shows: what the pages show of the table and of other files in its folder.
        read: returns the scores by id (None: no scores), from the folder of predictions, the model
            and the rows of the table.
        values: returns what the template needs.
    """

    template: Path
    shows: Mapping[str, str]
    read: Callable[[Path, Any, Sequence[Any]], Mapping[str, Any]]
    values: Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """The report of a task.

    Attributes:
        unit: `slide` or `case`.
        table: the name of the table of the cohort.
        records: the name of the folder of records and states.
        kind: what a record contains.
        model: the class of model/settings.json.
        columns: of the table that only this task has.
        records_column: the one with the number of records; None: each usable row has one.
        stratum: returns what tables count by from a label; by default, the label.
        read_sheet: reads the sample sheet.
        read_state: reads the state of a row from the folder of states; it must match the row.
        read_scored: reads the scores from the folder of the evaluation.
        read_not_scored: returns why usable slides or cases have no scores, by id. Takes the folder
            of the evaluation or of the predictions, and their ids.
        read_metrics: reads metrics.json, which must match the scores.
        file_of: returns the fingerprint of the file of a row, from the folder of states, if its
            records may be parts of the file; otherwise None.
        image_files: returns split, fingerprint and name of each image file of the cohort.
        positions: returns the same with a hash of the positions of tiles, if another program chose
            them.
        measure: the metric in history.tsv that the report plots, in addition to the loss.
        criterion: the metric of the validation by which the model is chosen; see
            `gigatile.training.validation.Validation`.
        shows: what the report shows of its inputs: the table, the model's settings, files of the
            evaluation, and of each slide or case (`{records}/*.json`).
        page_files: the files of a page (`{records}/{id}.json`), and what it shows of them.
        pages: returns the function that renders a page.
        options: default and help of each option of the pages, a whole number.
        evaluated: the inputs of which metrics.json must have the checksums.
        template: renders the first page; it extends report.html.j2.
        summary: returns what the top of the first page needs.
        sections: of the first page, in their order.
        new: the pages of new slides or cases.
    """

    unit: str
    table: str
    records: str
    kind: RecordKind
    model: type[TrainedModel]
    columns: Sequence[str]
    records_column: str | None = None
    stratum: Callable[[str], str] = str
    read_sheet: Callable[[Path], Sequence[Member]]
    read_state: Callable[[Any, Path], Any]
    read_scored: Callable[[Path, Any], Sequence[Any]]
    read_metrics: Callable[[Path, Any, Sequence[Any]], Any]
    read_not_scored: Callable[[Path, Sequence[str]], Mapping[str, str]] = lambda folder, ids: {}
    file_of: Callable[[Any, Path], str | None] = lambda row, folder: None
    image_files: Callable[[Any], Sequence[tuple[str, str, str]]]
    positions: Callable[[Any], Sequence[tuple[str, str, str]]] = lambda run: ()
    measure: str
    criterion: str = "loss"
    shows: Mapping[str, str]
    page_files: Mapping[str, str]
    pages: Callable[[Any], WritePage]
    options: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    evaluated: Sequence[str]
    template: Path
    summary: Callable[[Any], Mapping[str, Any]]
    sections: Sequence[Section]
    new: NewSamples

    @property
    def folder(self) -> str:
        """The folder of the pages of slides or cases."""
        return f"{self.unit}s"

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs of the report, with their default places in the run's folder."""
        return {
            "table": self.table,
            "splits": "splits.json",
            "shards": "shards/manifest.json",
            "records_dir": self.records,
            "model_dir": "model",
            "evaluation_dir": "evaluation",
        }

    @property
    def new_inputs(self) -> dict[str, str]:
        """The inputs of the pages of new slides or cases, with their default places."""
        return {
            "table": f"predictions/{self.table}",
            "records_dir": f"predictions/{self.records}",
            "results_dir": "predictions",
            "model_dir": "model",
        }
