"""New slides, predicted by the models of all folds: the mean of their predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gigatile.errors import all_faults
from gigatile.files import sha256_of, write_json
from gigatile.json_models import JsonModel, read_model
from gigatile.model_files import DESCRIBED, MODEL
from gigatile.provenance.output_records import read_output_record, record_path
from gigatile.report.mean_predictions import MeanPredictions
from gigatile.report.pages import check_ids
from gigatile.tables import read_table, write_table

PREDICTED, NEW_TABLE = "predictions/slides.tsv", "predictions/tiles.tsv"
MADE_FROM, MATCHES = "predictions/provenance.json", "predictions/in_cohort.tsv"


class _MadeFrom(JsonModel):
    """The part of predictions/provenance.json that says what the scores were computed from."""

    inputs: dict[str, str]


@dataclass(frozen=True)
class _Predictions:
    """The predictions of a run.

    Attributes:
        name: of the run.
        slides: its slides.tsv; see `MeanPredictions.read`.
        contents: the SHA-256 of the records of each predicted slide.
        known: the slides of which the slide, its patient or its pixels are in the cohort.
        faults: why its predictions are not those of its model.
        inputs: SHA-256 of the files, by name.
    """

    name: str
    slides: pd.DataFrame
    contents: dict[str, str]
    known: set[str]
    faults: list[str]
    inputs: dict[str, str]


@dataclass(frozen=True)
class PooledPredictions:
    """The predictions of all models together.

    Attributes:
        slides: a row per slide; see `MeanPredictions.mean`, and in_cohort (`yes`, `no`).
        agreement: how far the models agree, in words.
        inputs: SHA-256 of the files, by name.
    """

    slides: pd.DataFrame
    agreement: str
    inputs: dict[str, str]

    def write(self, folder: Path, stated: Mapping[str, Any]) -> None:
        """Write predictions/slides.tsv, and last predictions/provenance.json, as a run does.

        Args:
            folder: to write into.
            stated: what the provenance says of the models.
        """
        (folder / PREDICTED).parent.mkdir(parents=True, exist_ok=True)
        # Not there with a table of another call.
        (folder / MADE_FROM).unlink(missing_ok=True)
        rows = self.slides.to_numpy(object).tolist()
        write_table(folder / PREDICTED, list(self.slides.columns), rows)
        inputs = self.inputs | {PREDICTED: sha256_of(folder / PREDICTED)}
        write_json(folder / MADE_FROM, {**stated, "inputs": inputs})


def pool_predictions(
    folders: Sequence[Path], mean: MeanPredictions, models: Sequence[Path] | None = None
) -> PooledPredictions | None:
    """Pool the predictions of new slides.

    Args:
        folders: of the runs of all folds.
        mean: how predictions are put together.
        models: the folders of their models; None: those of the runs.

    Returns:
        None: no run has predicted new slides.

    Raises:
        UserError: lists all faults: a run lacks predictions that others have, they are not of its
            model, a file is damaged or was changed, or the slides differ.
    """
    lacking = [folder for folder in folders if not (folder / PREDICTED).exists()]
    if len(lacking) == len(folders):
        return None
    faults = [f"{folder}: has no {PREDICTED}, but other folds have" for folder in lacking]
    of_runs = [folder / "model" for folder in folders] if models is None else models
    runs = [
        _read(folder, model, mean)
        for folder, model in zip(folders, of_runs, strict=True)
        if folder not in lacking
    ]
    faults += [fault for run in runs for fault in run.faults]
    first = runs[0]
    for run in runs[1:]:
        faults += [
            f"{run.name}: slide {slide!r} was predicted by only one of {first.name} and {run.name}"
            for slide in sorted(first.contents.keys() ^ run.contents.keys())
        ]
        faults += [
            f"{run.name}: slide {slide!r} has other records than in {first.name}"
            for slide in sorted(first.contents.keys() & run.contents.keys())
            if first.contents[slide] != run.contents[slide]
        ]
    if faults:
        raise all_faults("the predictions of the folds cannot be pooled", faults)
    slides = mean.mean([run.slides for run in runs])
    known = set().union(*(run.known for run in runs))
    slides["in_cohort"] = ["yes" if slide in known else "no" for slide in slides["slide"]]
    return PooledPredictions(
        slides,
        mean.agreement(slides, len(runs)),
        {name: sha256 for run in runs for name, sha256 in run.inputs.items()},
    )


def _read(folder: Path, model: Path, mean: MeanPredictions) -> _Predictions:
    name = folder.resolve().name
    slides = mean.read(folder / PREDICTED)
    check_ids(slides["slide"].tolist(), folder / PREDICTED)
    rows = read_table(folder / NEW_TABLE, ("slide", "sha256"))
    contents = {row["slide"]: row["sha256"] for row in rows}
    inputs = read_model(_MadeFrom, folder / MADE_FROM).inputs
    known = {row["slide"] for row in read_table(folder / MATCHES, ("slide",))}
    expected = dict(inputs)
    pages = read_output_record(record_path(folder, "prediction_pages"))
    if pages is not None and MATCHES in pages.outputs:
        expected[MATCHES] = pages.outputs[MATCHES].sha256
    files = {file: folder / file for file in (PREDICTED, NEW_TABLE, MATCHES)}
    files |= {f"model/{file}": model / file for file in (DESCRIBED, MODEL)}
    faults = [
        f"{name}: {file} was changed after the new slides were predicted"
        for file, path in files.items()
        if file in expected and expected[file] != sha256_of(path)
    ]
    if MATCHES not in expected:
        faults.append(f"{name}: the checksum of {MATCHES} is not recorded")
    if not {f"model/{DESCRIBED}", f"model/{MODEL}"} & inputs.keys():
        faults.append(f"{name}: {MADE_FROM} does not say which model predicted")
    return _Predictions(
        name,
        slides,
        {slide: contents.get(slide, "") for slide in slides["slide"]},
        known,
        faults,
        {f"{name}/{file}": sha256_of(folder / file) for file in (PREDICTED, MADE_FROM, MATCHES)},
    )
