"""The definition of a task, which planning reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gigatile.cohort.sheet import Member
from gigatile.settings.section import Section

# Defaults of tasks with thousands of samples per slide or case.
SHORT_TRAINING = {"epochs": 8, "segment_epochs": 4, "batch_size": 32}


class SheetReader(Protocol):
    """Reads the rows of a sample sheet."""

    def __call__(
        self,
        path: Path,
        settings: Any,
        labelled: bool,
        may_be_missing: Callable[[Path], bool],
        look: bool,
    ) -> Sequence[Member]:
        """Return the rows.

        Args:
            path: the sheet.
            settings: the settings of the run.
            labelled: whether labels or reference segmentations are required.
            may_be_missing: returns for a missing file whether the workflow will create it.
            look: whether to check that files exist.

        Raises:
            UserError: lists all faults of the sheet.
        """


@dataclass(frozen=True)
class Task:
    """The definition of a task, without TensorFlow.

    Attributes:
        description: the purpose of its models, in one line.
        columns: the columns of its sample sheet, in one line.
        unit: the object in a row of the sample sheet, for example `slide`. It is also the name of
            the column of ids and of the wildcard of the rules.
        records: folder of the prepared records in the results, with `<unit id>.tfrecord` and
            `<unit id>.json`.
        table: name of the table of all units in the results.
        architecture: kind of the models that it trains; see `gigatile.models`.
        sections: the sections that this task adds to the settings, with their descriptions.
        preparation: the section of the settings for the preparation of records; it must have
            `stall_minutes`.
        read_sheet: reads its sample sheet.
        training: the settings that its training depends on, in addition to the section `train`.
        validation: further settings that its validation depends on.
        execution: settings of its training and validation that do not change the result, such as
            how much memory they use.
        choice: settings that the chosen model depends on, in addition to its training; the task has
            the module `choice`. Empty: none.
        parts: returns the number of parts in which units are prepared, a job for each part (see
            `gigatile.records.parts`); None: a job for each unit.
        predicts: whether its models can be applied to new data: it has the modules `prediction` and
            `model`.
        detects_on_slides: whether its models detect the instances of whole slides: it uses
            `predict.slides`.
        classifies_slides: whether its models classify slides.
        predicts_outcomes: whether its models predict numbers or times to events.
        truth: the columns with any of which a sheet of new data is used for external validation,
            for example `label`: the task has the modules `external` and `external_page`. Empty: its
            predictions of new data are not evaluated.
        compares: whether its report can compare the maps of slides with those of another run.
        losses: names of its losses, the values of `train.loss`; the first is the default.
        train_options: keys of the section `train` that this task uses and others do not.
        train_defaults: the values of keys of the section `train` that are null.
        headline: the main figure of a run: its name, and where it is in evaluation/metrics.json.
        check: raises ValueError for settings that do not fit together.
    """

    description: str
    columns: str
    unit: str
    records: str
    table: str
    architecture: str
    sections: Mapping[str, tuple[type[Section], str]]
    preparation: str
    read_sheet: SheetReader
    training: Callable[[Any], Mapping[str, Any]]
    validation: Callable[[Any], Mapping[str, Any]] = lambda settings: {}
    execution: Callable[[Any], Mapping[str, Any]] = lambda settings: {}
    choice: Callable[[Any], Mapping[str, Any]] = lambda settings: {}
    parts: Callable[[Any], int | None] = lambda settings: None
    predicts: bool = True
    detects_on_slides: bool = False
    compares: bool = False
    classifies_slides: bool = False
    predicts_outcomes: bool = False
    truth: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    train_options: frozenset[str] = field(default_factory=frozenset)
    train_defaults: Mapping[str, Any] = field(
        default_factory=lambda: {"model": "small_cnn", **SHORT_TRAINING}
    )
    headline: tuple[str, str] | None = None
    check: Callable[[Any], None] = lambda settings: None
