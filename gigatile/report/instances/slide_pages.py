"""The pages of whole slides: the number and density of their instances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.cohort.names import same_names
from gigatile.cohort.samples import Sample
from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.instances.slide_state import DetectionState
from gigatile.instances.slide_table import density_map, read_batches
from gigatile.json_models import read_model
from gigatile.report.inputs import CohortRow, read_cohort
from gigatile.report.instances.inputs import TrainedDetector, file_of
from gigatile.report.known_samples import CohortMatches, Match
from gigatile.report.pages import (
    Neighbours,
    data_uri,
    flat,
    neighbours_of,
    render,
    scale_bar,
    write_pages,
)
from gigatile.report.provenance import Ledger, checksum
from gigatile.report.slides.heatmap import COLOURS, colour_bar, png
from gigatile.report.slides.inputs import mpp_source
from gigatile.settings.initial_weights import INITIAL_WEIGHTS
from gigatile.settings.slide_instances import ASSUMED_MPP
from gigatile.tables import write_table

TEMPLATES = Path(__file__).parent / "templates"
# Files of a slide by their name in its state, with their endings and what its page shows of them.
FILES = {
    "table": (".parquet", "Slide pages: densities and areas"),
    "outlines": (".geojson.gz", "nothing; they are the outlines for QuPath"),
    "overview": (".jpg", "Slide pages: overviews"),
}
MATCHES = "slides_in_cohort.tsv"
# More instances that a window cuts are worth a warning, as a share of all instances.
MANY_CUT = 0.01
COLUMNS = ("slide", "patient", "state", "reason", "mpp", "tissue_mm2", "cut", "full_windows")


@dataclass(frozen=True)
class Category:
    """The instances of a category on a slide.

    Attributes:
        name: of the category.
        count: number of instances.
        per_mm2: per mm² of tissue; None: the scale of the slide is not known.
        area: median of their areas in µm²; None: there are none, or the scale is not known.
        layer: their density, a picture (data URI) with a pixel for each square.
        highest: the highest number of instances in a square.
    """

    name: str
    count: int
    per_mm2: float | None
    area: float | None
    layer: str
    highest: int


@dataclass(frozen=True)
class SlidePage:
    """A slide with its instances.

    Attributes:
        row: of the sheet.
        state: what was detected.
        tissue: area in mm²; None: the scale is not known.
        categories: the instances.
        cell: side of the squares of the density map, in pixels of level 0 and in µm.
        box: width and height of the density map in pixels of level 0.
    """

    row: Sample
    state: DetectionState
    tissue: float | None
    categories: Sequence[Category]
    cell: tuple[float, float]
    box: tuple[float, float]

    @property
    def warnings(self) -> list[str]:
        """What the reader of its numbers should know."""
        windows, texts = self.state.windows, []
        if windows is None:
            return []
        if windows.full:
            texts.append(
                f"In {windows.full:,} of {windows.tissue:,} windows the model detected as many "
                f"instances as detection.detections_per_image allows ({windows.limit:,} in a "
                "window), so some may be missing. Raise it."
            )
        if windows.unreadable:
            first = self.state.unreadable[0]
            texts.append(
                f"{windows.unreadable:,} of {windows.tissue:,} windows cannot be read; at x "
                f"{first.x:,}, y {first.y:,}: {first.reason}"
            )
        if self.state.cut > MANY_CUT * sum(self.state.instances.values()):
            texts.append(
                f"{self.state.cut:,} instances are cut at the border of a window, because no other "
                "window shows them. If they are large, raise slide_instances.overlap."
            )
        grid = self.state.input
        if grid is not None and grid.mpp is not None and self.state.requested_mpp is None:
            texts.append(
                f"The slide was read at level 0, which has {grid.mpp:.3g} µm per pixel: the scale "
                "of the training images is not known, or not the same for all. If theirs differs, "
                "set slide_instances.mpp."
            )
        texts += [f"Two scales: {text}." for text in self.state.contradictions]
        return texts


def write_slide_pages(
    run: Path,
    model_dir: Path,
    samples: Sequence[Sample],
    out: Path,
    table: Path,
    matches: Path,
    cohort: Path | None,
) -> None:
    """Write a page for each slide, index.html, and the table of all slides.

    Args:
        run: folder of the run.
        model_dir: folder of the model.
        samples: rows of the sheet of slides.
        out: folder for the pages.
        table: of all slides, to write.
        matches: table to write, of the slides that are in the cohort.
        cohort: folder of the run that trained the model; None: the slides are not compared with
            its cohort.

    Raises:
        UserError: a file is missing or damaged, or does not match the others.
    """
    ledger = Ledger()
    model = read_model(TrainedDetector, model_dir / "settings.json")
    model_shows = {
        "settings.json": "Model",
        "versions.json": "Model: software",
        "model.keras": "nothing; it is the model of these predictions",
    }
    ledger.add_folder("model", model_dir, model_shows)
    model_sha256 = checksum(model_dir / "model.keras")
    folder = run / "predictions/slides"
    states = {row.id: _read_state(folder, row, model_sha256) for row in samples}
    in_cohort = None if cohort is None else _compare(cohort, samples, states, ledger)
    if in_cohort is not None and INITIAL_WEIGHTS in model.inputs:
        in_cohort = replace(in_cohort, doubt="its data were not compared with whole slides")
    pages = [
        _slide_page(row, states[row.id], folder, model.categories)
        for row in samples
        if states[row.id].state == "detected"
    ]
    sums: dict[str, dict[str, str]] = {ending: {} for ending in (".json", *_endings())}
    with write_pages(out) as building:
        for page, neighbours in zip(
            pages, neighbours_of([page.row.id for page in pages]), strict=True
        ):
            name = page.row.id
            page_sums = _checked_sums(folder, page.state)
            for file, digest in page_sums.items():
                sums[file.removeprefix(f"predictions/slides/{name}")][file] = digest
            matched = in_cohort.matches_of(name) if in_cohort else ()
            text = _render(page, folder, neighbours, matched, page_sums)
            (building / "slides" / f"{name}.html").write_text(text, encoding="utf-8")
        shows = {".json": "Slides"} | dict(FILES.values())
        for ending, group in sums.items():
            ledger.add_group(
                f"predictions/slides/<slide>{ending} of the slides", group, shows[ending]
            )
        index = render(
            TEMPLATES / "detected_slides.html.j2",
            title="Instances of whole slides",
            unit="slide",
            pages=pages,
            categories=model.categories,
            appearances=None,  # the figures of images and of whole slides differ
            in_cohort=in_cohort,
            failed=[
                (name, state.reason) for name, state in states.items() if state.state == "failed"
            ],
            settings=flat(model.settings() | {"slide_instances": _settings_of(states)}),
            versions=read_json(model_dir / "versions.json"),
            model_sha256=model_sha256,
            ledger=ledger,
        )
        (building / "index.html").write_text(index, encoding="utf-8")
        _write_table(table, samples, states, pages, model.categories)
        (in_cohort or CohortMatches([], [], [])).write(matches, "slide")


def _endings() -> list[str]:
    return [ending for ending, _ in FILES.values()]


def _settings_of(states: Mapping[str, DetectionState]) -> Mapping[str, Any]:
    return next(iter(states.values())).settings


def _read_state(folder: Path, row: Sample, model: str) -> DetectionState:
    """Read the state of a slide, which must be that of the run's model."""
    path = folder / f"{row.id}.json"
    state = read_model(DetectionState, path)
    if state.slide != row.id or state.model != model:
        raise UserError(
            f"{path}: is of slide {state.slide!r} and model {state.model[:12]}…, not of "
            f"{row.id!r} and {model[:12]}…; run the detection again"
        )
    return state


def _checked_sums(folder: Path, state: DetectionState) -> dict[str, str]:
    """Return the checksums of the files of a slide by their names in the run."""
    sums = {}
    for name, (ending, _) in FILES.items():
        path = folder / f"{state.slide}{ending}"
        actual = checksum(path)
        if actual != state.files[name].sha256:
            raise UserError(
                f"{path}: its SHA-256 is {actual[:12]}…, but the state of the slide has "
                f"{state.files[name].sha256[:12]}…; one of the two is out of date"
            )
        sums[f"predictions/slides/{path.name}"] = actual
    path = folder / f"{state.slide}.json"
    return {f"predictions/slides/{path.name}": checksum(path)} | sums


def _slide_page(
    row: Sample, state: DetectionState, folder: Path, categories: Sequence[str]
) -> SlidePage:
    """Read the table of a slide, and draw its density map."""
    width, height = state.source.width, state.source.height
    if width is None or height is None or list(state.instances) != list(categories):
        raise UserError(f"{folder / row.id}.json: is damaged; run the detection again")
    side = float(str(state.settings["density_um"]))
    cell = side / (state.mpp or ASSUMED_MPP)
    counts, areas = _measure(folder / f"{row.id}.parquet", categories, width, height, cell)
    tissue = None
    if state.mpp is not None and state.tissue_pixels is not None:
        tissue = state.tissue_pixels * state.mpp**2 / 1e6
    measured = []
    for name in categories:
        count = int(counts[name].sum())
        if count != state.instances[name]:
            raise UserError(
                f"{folder / row.id}.parquet: has {count} instances of {name}, but the state of the "
                f"slide {state.instances[name]}; run the detection again"
            )
        known = areas[name][np.isfinite(areas[name])]
        measured.append(
            Category(
                name,
                count,
                count / tissue if tissue else None,
                float(np.median(known)) if len(known) else None,
                data_uri(_paint(counts[name]), "image/png"),
                int(counts[name].max()),
            )
        )
    rows, columns = counts[categories[0]].shape
    return SlidePage(row, state, tissue, measured, (cell, side), (columns * cell, rows * cell))


def _measure(
    path: Path, categories: Sequence[str], width: int, height: int, cell: float
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the density map of each category, (rows, columns), and the areas in µm², (n,)."""
    counts = {name: density_map((), width, height, cell) for name in categories}
    areas: dict[str, list[np.ndarray]] = {name: [np.empty(0, np.float32)] for name in categories}
    for batch in read_batches(path, ("x", "y", "class", "area_um2")):
        for name in categories:
            chosen = batch["class"] == name
            part = {axis: batch[axis][chosen] for axis in ("x", "y")}
            counts[name] += density_map((part,), width, height, cell)
            # Without a scale they are None.
            areas[name].append(batch["area_um2"][chosen].astype(np.float32))
    return counts, {name: np.concatenate(parts) for name, parts in areas.items()}


def _paint(counts: np.ndarray) -> bytes:
    """Return a PNG with a pixel for each square; transparent without an instance."""
    pixels = COLOURS[np.rint(counts * (255 / max(1, counts.max()))).astype(np.int64)].copy()
    pixels[counts == 0] = 0
    return png(pixels)


def _render(
    page: SlidePage,
    folder: Path,
    neighbours: Neighbours,
    matches: Sequence[Match],
    sums: Mapping[str, str],
) -> str:
    state, source = page.state, page.state.source
    assert source.width is not None
    overview = (folder / f"{state.slide}.jpg").read_bytes()
    return render(
        TEMPLATES / "detected_slide.html.j2",
        page=page,
        state=state,
        width=source.width,
        height=source.height,
        overview=data_uri(overview, "image/jpeg"),
        shown=max(range(len(page.categories)), key=lambda index: page.categories[index].count),
        colour_bar=data_uri(colour_bar(), "image/png"),
        scale_bar=scale_bar(source.width, state.mpp) if state.mpp else None,
        mpp_source=mpp_source(state.mpp_from),
        neighbours=neighbours,
        matches=matches,
        sums=sums,
    )


def _compare(
    run: Path, samples: Sequence[Sample], states: Mapping[str, DetectionState], ledger: Ledger
) -> CohortMatches:
    """Compare slides with the images and slides of the cohort: by id, by patient and by file."""
    ledger.add("images.tsv", run / "images.tsv", "In the cohort")
    cohort = read_cohort(run / "images.tsv", "image", ("part", "fingerprint"))
    patients = [row.patient for row in cohort] + [row.patient for row in samples]
    known_names = dict.fromkeys(name for name in patients if name)
    spelling = {name: same[0] for same in same_names(list(known_names)) for name in same}
    by_id: dict[str, list[CohortRow]] = {}
    by_patient: dict[str, list[CohortRow]] = {}
    by_file: dict[str, list[CohortRow]] = {}
    for known in cohort:
        by_id.setdefault(known.id.casefold(), []).append(known)
        by_patient.setdefault(spelling.get(known.patient, known.patient), []).append(known)
        if file := file_of(known, run / "images"):
            by_file.setdefault(file, []).append(known)
    matches = []
    for row in samples:
        same: dict[str, list[str]] = {}
        rows: dict[str, CohortRow] = {}
        patient = spelling.get(row.patient, row.patient)
        for what, index, key in (
            ("id", by_id, row.id.casefold()),
            ("patient", by_patient, patient),
            ("file", by_file, states[row.id].source.fingerprint or ""),
        ):
            for known in index.get(key, ()) if key else ():
                rows[known.id] = known
                same.setdefault(known.id, []).append(what)
        matches += [Match(row.id, rows[name], what, 0) for name, what in same.items()]
    compared = [known.id for group in by_file.values() for known in group]
    return CohortMatches(matches, compared, [], "files", "image", MATCHES)


def _write_table(
    path: Path,
    samples: Sequence[Sample],
    states: Mapping[str, DetectionState],
    pages: Sequence[SlidePage],
    categories: Sequence[str],
) -> None:
    """Write a row for each slide: its state, and number and density of the instances."""
    by_id = {page.row.id: page for page in pages}
    columns = [*COLUMNS, *(f"{name}_count" for name in categories)]
    columns += [f"{name}_per_mm2" for name in categories]
    rows = []
    for sample in samples:
        state, page = states[sample.id], by_id.get(sample.id)
        cells: list[object] = [sample.id, sample.patient, state.state, state.reason or ""]
        cells.append("" if state.mpp is None else f"{state.mpp:.6g}")
        if page is None or state.windows is None:
            rows.append([*cells, *[""] * (len(columns) - len(cells))])
            continue
        cells.append("" if page.tissue is None else f"{page.tissue:.6g}")
        cells += [state.cut, state.windows.full]
        cells += [category.count for category in page.categories]
        densities = [category.per_mm2 for category in page.categories]
        cells += ["" if value is None else f"{value:.6g}" for value in densities]
        rows.append(cells)
    write_table(path, columns, rows)
