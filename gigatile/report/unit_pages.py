"""Writes the pages of slides or cases, and lists the files behind them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from gigatile.evaluation.appearance import AppearanceTest
from gigatile.report.inputs import CohortRow
from gigatile.report.known_samples import Match
from gigatile.report.pages import Neighbours, neighbours_of
from gigatile.report.provenance import Ledger

# The folder of the tiles of slides.
TILE_FOLDER = "tiles"

Scored = TypeVar("Scored")
Model = TypeVar("Model")


@dataclass(frozen=True)
class PageFiles:
    """The files behind the pages of slides or cases.

    Attributes:
        records: folder of the records and states.
        results: folder of the scores or segmentations.
        model: the model's file.
        records_name, results_name: these folders relative to the run's folder.
    """

    records: Path
    results: Path
    model: Path
    records_name: str
    results_name: str

    def expand(self, patterns: Sequence[str], name: str) -> dict[str, Path]:
        """Return the files of one slide or case, by their names relative to the run's folder.

        Args:
            patterns: such as `{records}/{id}.json`; `{tiles}` is the folder of the tiles of slides,
                which may have other records.
            name: the id.
        """
        names = {"records": self.records_name, "results": self.results_name}
        names["tiles"] = str(Path(self.records_name).with_name(TILE_FOLDER))
        folders = {"records": self.records, "results": self.results}
        folders["tiles"] = self.records.with_name(TILE_FOLDER)
        return {
            pattern.format(**names, id=name): Path(pattern.format(**folders, id=name))
            for pattern in patterns
        }


@dataclass(frozen=True, kw_only=True)
class PageInputs(Generic[Scored, Model]):
    """The inputs of the pages of slides or cases.

    Attributes:
        rows: of the table of the cohort or of the new slides or cases, by id.
        scored: by id, in the order of the pages. New cases have no scores: None.
        matches: returns the slides or cases of the cohort that a new one matches.
        appearance: returns how a slide or case looks, compared with those of train and valid;
            None: it was not compared.
        options: of the command, such as `top_tiles`.
    """

    files: PageFiles
    model: Model
    rows: Mapping[str, CohortRow]
    scored: Mapping[str, Scored | None]
    matches: Callable[[str], Sequence[Match]]
    appearance: Callable[[str], AppearanceTest | None]
    options: Mapping[str, Any]


# Renders the page of one slide or case; returns it with the checksums of its files by name.
WritePage = Callable[[str, Neighbours], tuple[str, dict[str, str]]]


def write_unit_pages(write: WritePage, names: Sequence[str], folder: Path) -> dict[str, str]:
    """Write the page of each slide or case to `folder`.

    Returns:
        The checksums of the files behind the pages, by their names in the run.
    """
    sums: dict[str, str] = {}
    for name, neighbours in zip(names, neighbours_of(names), strict=True):
        page, page_sums = write(name, neighbours)
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
        sums |= page_sums
    return sums


def add_page_files(
    ledger: Ledger, shows: Mapping[str, str], sums: Mapping[str, str], files: PageFiles, unit: str
) -> None:
    """Add the files behind the pages to the ledger, one entry for each kind of file.

    Args:
        shows: what the pages show of each kind of file, such as `{records}/{id}.json`.
        sums: as `write_unit_pages` returns them.
        unit: names the slides or cases: `test slide`.
    """
    known = {entry.name for entry in ledger.entries}
    for pattern, text in shows.items():
        (name,) = files.expand([pattern], "*")
        folder, suffix = name.split("*")
        if name in known:
            continue  # an entry for the whole cohort
        group = {
            file: sha256
            for file, sha256 in sums.items()
            if file.startswith(folder) and file.endswith(suffix)
        }
        id_of_unit = f"<{unit.split()[-1]}>"
        ledger.add_group(f"{folder}{id_of_unit}{suffix} of the {unit}s", group, text)
