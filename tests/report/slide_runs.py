"""A small, consistent run on slides: images, records, and metrics computed from the scores."""

import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from gigatile.evaluation.intervals import describe_intervals
from gigatile.files import combined_checksum, sha256_of, write_json
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.shard_layout import Source
from gigatile.records.writing import write_shards
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.shards import ShardSettings
from gigatile.slides.index import AREAS, TileIndex, write_empty_index
from gigatile.slides.tile_filter import count_tiles
from gigatile.tables import write_table

CLASSES = ("adeno", "normal", "squamous")
COLOURS = {0: (205, 120, 160), 1: (235, 190, 200), 2: (150, 90, 170)}
SIDE = 32  # of a tile's picture, in pixels


@dataclass
class Plan:
    """A slide to write."""

    slide: str
    patient: str
    label: str
    split: str
    extent: float = float(SIDE)
    mpp: float | None = 0.5
    reason: str | None = None
    scanner: str | None = None
    columns: int = 9
    rows: int = 7
    scores: dict[tuple[int, int], Sequence[float]] = field(default_factory=dict)


def cohort(classes: Sequence[str] = CLASSES) -> list[Plan]:
    """Five patients of each class: 2 train, 1 valid, 2 test; one test patient has two slides."""
    plans = []
    for k, label in enumerate(classes):
        for number, split in enumerate(("train", "train", "valid", "test", "test")):
            patient = f"P{k}{number}"
            plans.append(Plan(f"S{k}{number}", patient, label, split))
            if number == 3:
                # Resampled: a tile spans no whole number of pixels.
                plans.append(Plan(f"S{k}{number}b", patient, label, split, extent=31.7))
    plans.append(Plan("F1", "P00", classes[0], "train", reason="not a slide: /data/in/F1.svs: bad"))
    plans.append(Plan("F2", "P14", classes[1], "test", reason="none of its 63 tiles has tissue"))
    return plans


def build_run(
    folder: Path,
    plans: Sequence[Plan] | None = None,
    classes: Sequence[str] = CLASSES,
    settings: dict[str, Any] | None = None,
) -> Path:
    """Write the results of the stages before the report."""
    plans = cohort(classes) if plans is None else plans
    rng = np.random.default_rng(5)
    write_json(folder / "splits.json", _splits(plans, classes))
    tables = [_make_slide(folder / "tiles", plan, classes, rng) for plan in plans]
    columns = ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256")
    write_table(folder / "tiles.tsv", columns, [row for row, _ in tables])
    _shards(folder, plans, tables)
    _model(folder, classes, settings or {"size": SIDE, "mpp": 0.5})
    scored = [
        (plan, tiles)
        for plan, (_, tiles) in zip(plans, tables, strict=True)
        if plan.split == "test" and tiles is not None
    ]
    _evaluation(folder, scored, classes)
    return folder


def jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _make_slide(
    folder: Path, plan: Plan, classes: Sequence[str], rng: np.random.Generator
) -> tuple[tuple[Any, ...], dict[str, np.ndarray] | None]:
    records, picture = folder / f"{plan.slide}.tfrecord", folder / f"{plan.slide}.jpg"
    width, height = int(plan.columns * plan.extent) + 9, int(plan.rows * plan.extent) + 17
    state: dict[str, Any] = {
        "schema": 4,
        "slide": plan.slide,
        "state": "failed" if plan.reason else "tiled",
        "reason": plan.reason,
        "source": {"name": f"{plan.slide}.svs", "bytes": 99, "fingerprint": f"f-{plan.slide}"}
        | dict.fromkeys(("vendor", "width", "height", "levels", "objective_power")),
        "mpp": None,
        "mpp_from": None,
        "mpp_by_source": {},
        "contradictions": [],
        "grid": None,
        "illumination": None,
        "tissue_threshold": None,
        "overview": None,
        "reading": None,
        "stain": None,
        "tiles": {"kept": 0, "dropped": {"background": 0}, "marked": {}},
        "unreadable": [],
    }
    tiles = None
    folder.mkdir(parents=True, exist_ok=True)
    if plan.reason:
        picture.write_bytes(jpeg(np.full((1, 1, 3), 255, np.uint8)))
        write_records(records, ())
        write_empty_index(folder / f"{plan.slide}.parquet", Image.new("1", (1, 1)))
    else:
        state["source"] |= {"vendor": "aperio", "width": width, "height": height}
        state["source"]["scanner"] = plan.scanner
        state |= {"mpp": plan.mpp, "mpp_from": "file" if plan.mpp else None}
        state["grid"] = {
            "size": SIDE,
            "mpp": plan.mpp and plan.mpp * plan.extent / SIDE,
            "extent": plan.extent,
            "level": 0,
            "scale": [1, 1],
            "resampled": plan.extent != SIDE,
            "columns": plan.columns,
            "rows": plan.rows,
        }
        tiles = _tiles(plan, classes, rng)
        level_0 = _draw(plan, tiles, width, height, rng)
        write_records(records, _records(plan, tiles, level_0))
        whole = Image.fromarray(level_0).resize((width * 2 // 3, height * 2 // 3))
        picture.write_bytes(jpeg(np.asarray(whole)))
        kept = len(tiles["x"])
        index = _index(plan, tiles)
        index.write(folder / f"{plan.slide}.parquet", Image.new("1", (1, 1)))
        state["tiles"] = {"kept": kept} | count_tiles(index.dropped, index.marks)
        state |= {"illumination": "transmitted", "tissue_threshold": 17}
        state["reading"] = {"by": "native tiles", "why": None, "compared": 4}
    state["files"], state["settings"] = {}, {}
    state["records"] = {"bytes": records.stat().st_size, "sha256": sha256_of(records)}
    write_json(folder / f"{plan.slide}.json", state)
    row = (plan.slide, plan.patient, plan.label, plan.split, state["state"])
    return (*row, state["tiles"]["kept"], plan.reason, state["records"]["sha256"]), tiles


def _index(plan: Plan, tiles: dict[str, np.ndarray]) -> TileIndex:
    """Return the table of tiles: tiles without scores are background, the first one is marked."""
    row, column = np.divmod(np.arange(plan.columns * plan.rows), plan.columns)
    corners = np.rint(np.stack([column, row], axis=1) * plan.extent).astype(np.int64)
    index = TileIndex(corners, dict.fromkeys(AREAS, np.zeros(len(corners))))
    kept = set(zip(tiles["x"].tolist(), tiles["y"].tolist(), strict=True))
    for number, corner in enumerate(corners.tolist()):
        if tuple(corner) not in kept:
            index.dropped[number] = "background"
        elif not index.marks:
            index.marks[number] = ("blur", "pen")
    return index


def _tiles(plan: Plan, classes: Sequence[str], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return an oval of tissue, with scores that are higher for the label."""
    rows, columns = np.mgrid[: plan.rows, : plan.columns]
    middle = np.array([(plan.columns - 1) / 2, (plan.rows - 1) / 2])
    radius = np.maximum(middle, 0.5)
    from_middle = (np.stack([columns, rows], axis=-1) - middle) / radius
    inside = (from_middle**2).sum(axis=-1) <= 1.05
    column, row = columns[inside], rows[inside]
    lean = rng.normal(0.9, 1.0)
    logits = rng.normal(0, 1, (len(column), len(classes)))
    logits[:, classes.index(plan.label)] += lean
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for (c, r), wanted in plan.scores.items():
        scores[(column == c) & (row == r)] = wanted
    return {
        "x": np.rint(column * plan.extent).astype(np.int64),
        "y": np.rint(row * plan.extent).astype(np.int64),
        "scores": scores.astype(np.float32),
    }


def _draw(
    plan: Plan, tiles: dict[str, np.ndarray], width: int, height: int, rng: np.random.Generator
) -> np.ndarray:
    level_0 = np.full((height, width, 3), 242, np.uint8)
    side = int(np.ceil(plan.extent))
    for x, y, best in zip(tiles["x"], tiles["y"], tiles["scores"].argmax(axis=1), strict=True):
        box = level_0[y : y + side, x : x + side]
        box[:] = np.clip(rng.normal(COLOURS[int(best) % 3], 14, box.shape), 0, 255)
    return level_0


def _records(plan: Plan, tiles: dict[str, np.ndarray], level_0: np.ndarray) -> Any:
    side = int(np.ceil(plan.extent))
    for x, y in zip(tiles["x"].tolist(), tiles["y"].tolist(), strict=True):
        cut = Image.fromarray(level_0[y : y + side, x : x + side]).resize((SIDE, SIDE))
        image = jpeg(np.asarray(cut))
        yield encode_tile(Tile(image, plan.slide, x, y, plan.extent, plan.mpp, 0.9))


def _splits(plans: Sequence[Plan], classes: Sequence[str]) -> dict[str, Any]:
    shares = {"train": 0.4, "valid": 0.2, "test": 0.4}
    patients = {split: {p.patient for p in plans if p.split == split} for split in shares}
    summary = {}
    for split, wanted in shares.items():
        by_label = {}
        for label in classes:
            members = [p for p in plans if (p.split, p.label) == (split, label)]
            everyone = {p.patient for p in plans if p.label == label}
            here = {p.patient for p in members}
            share = len(here) / len(everyone) if everyone else 0.0
            by_label[label] = {
                "patients": len(here),
                "slides": len(members),
                "share": share,
                "wanted": wanted,
            }
        slides = sum(p.split == split for p in plans)
        counts = {"patients": len(patients[split]), "slides": slides}
        summary[split] = counts | {"by_label": by_label}
    pairs = (("train", "valid"), ("train", "test"), ("valid", "test"))
    return {
        "seed": 3,
        "shares": shares,
        "labels": list(classes),
        "splits": summary,
        "shared_patients": {f"{a}&{b}": sorted(patients[a] & patients[b]) for a, b in pairs},
        "sheet_sha256": "ab" * 32,
    }


def _shards(folder: Path, plans: Sequence[Plan], tables: Sequence[Any]) -> None:
    rows = [row for row, _ in tables if row[4] == "tiled"]
    shard_tiles(folder, rows)


def shard_tiles(folder: Path, rows: Sequence[Sequence[Any]]) -> None:
    """Write the shards of train and valid from rows of tiles.tsv."""
    sources, inputs = {}, {}
    for split in ("train", "valid"):
        rows_of_split = [row for row in rows if row[3] == split]
        sources[split] = [
            Source(row[0], row[1], row[2], folder / f"tiles/{row[0]}.tfrecord")
            for row in rows_of_split
        ]
        sums = {f"tiles/{row[0]}.tfrecord": row[7] for row in rows_of_split}
        inputs[f"tiles/<slide>.tfrecord of {split}"] = combined_checksum(sums)
    settings = ShardSettings(target_mb=100, seed=2)
    write_shards(sources, settings, folder / "shards", inputs=inputs)


def _model(folder: Path, classes: Sequence[str], tiles: dict[str, Any]) -> None:
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "model.keras").write_bytes(b"no model is needed to write a report")
    loss = [1.1 * 0.7**epoch for epoch in range(6)]
    rows = [(e + 1, v, 1 - v / 2, v * 1.2, 1 - v / 1.8) for e, v in enumerate(loss)]
    columns = ("epoch", "loss", "accuracy", "valid_loss", "valid_accuracy")
    write_table(model / "history.tsv", columns, rows)
    settings = {"classes": list(classes), "tiles": tiles, "train": {"ranks": 2, "weights": None}}
    inputs = {
        "shards/manifest.json": sha256_of(folder / "shards/manifest.json"),
        "segments/0006.keras": sha256_of(model / "model.keras"),
    }
    chosen = {"chosen": {"epoch": 6, "valid_loss": rows[-1][3], "of": 6}}
    write_json(model / "settings.json", settings | chosen | {"inputs": inputs})
    write_json(model / "versions.json", {"python": "3.11.7", "tensorflow": "2.21.0"})


def _evaluation(folder: Path, scored: Sequence[Any], classes: Sequence[str]) -> None:
    evaluation = folder / "evaluation"
    evaluation.mkdir()
    columns: dict[str, list[Any]] = {
        name: [] for name in ("slide", "patient", "label", "x", "y", "extent", "tissue")
    } | {f"p_{name}": [] for name in classes}
    rows = []
    for plan, tiles in scored:
        scores = tiles["scores"]
        n = len(scores)
        for name in ("slide", "patient", "label"):
            columns[name] += [getattr(plan, name)] * n
        columns["x"] += tiles["x"].tolist()
        columns["y"] += tiles["y"].tolist()
        columns["extent"] += [plan.extent] * n
        columns["tissue"] += [0.9] * n
        for k, name in enumerate(classes):
            columns[f"p_{name}"] += scores[:, k].tolist()
        mean = scores.mean(axis=0)
        vote = np.bincount(scores.argmax(axis=1), minlength=len(classes)).argmax()
        calls = classes[int(mean.argmax())], classes[int(vote)]
        rows.append((plan.slide, plan.patient, plan.label, n, *mean.tolist(), *calls))
    float_32 = {"tissue", *(f"p_{name}" for name in classes)}
    arrays = {
        name: pa.array(values, pa.float32() if name in float_32 else None)
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), evaluation / "tiles.parquet", row_group_size=100)
    header = ("slide", "patient", "label", "tiles", *(f"p_{name}" for name in classes))
    write_table(evaluation / "slides.tsv", (*header, "call_mean", "call_vote"), rows)
    write_metrics(folder, rows, classes)


def write_metrics(folder: Path, rows: Sequence[Sequence[Any]], classes: Sequence[str]) -> None:
    """Write metrics.json; a patient's scores are the mean of its slides'."""
    names = ["evaluation/slides.tsv", "evaluation/tiles.parquet", "model/model.keras", "tiles.tsv"]
    by_patient: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        by_patient.setdefault(row[1], []).append(row)
    merged = []
    for patient, slides in by_patient.items():
        mean = np.mean([row[4 : 4 + len(classes)] for row in slides], axis=0)
        call = classes[int(mean.argmax())]
        merged.append((patient, patient, slides[0][2], 0, *mean.tolist(), call, call))
    metrics = {
        "schema": 2,
        "classes": list(classes),
        "intervals": describe_intervals(EvaluationSettings(resamples=1000)).to_json(),
        "slide": _level(rows, classes),
        "patient": _level(merged, classes),
        "inputs": {name: sha256_of(folder / name) for name in names},
    }
    write_json(folder / "evaluation/metrics.json", metrics)


def _level(rows: Sequence[Sequence[Any]], classes: Sequence[str]) -> dict[str, Any]:
    truth = np.array([classes.index(row[2]) for row in rows], int)
    scores = np.array([row[4 : 4 + len(classes)] for row in rows], float).reshape(-1, len(classes))
    calls = {
        name: np.array([classes.index(row[column]) for row in rows], int)
        for name, column in (("mean_call", -2), ("vote_call", -1))
    }
    everyone = np.arange(len(rows))
    patients = len({row[1] for row in rows})

    def interval(measure: Callable[[np.ndarray], float | None]) -> dict[str, Any]:
        value = measure(everyone) if len(rows) else None
        low, high = (None, None) if value is None else (0.9 * value, 0.1 + 0.9 * value)
        why = "the figure is not defined" if value is None else None
        return {
            "value": value, "low": low, "high": high, "patients": patients, "no_interval": why
        }  # fmt: skip

    def of_class(k: int, measure: Callable[..., float]) -> Callable[[np.ndarray], float | None]:
        def measured(some: np.ndarray) -> float | None:
            is_class = truth[some] == k
            return (
                float(measure(is_class, scores[some, k]))
                if 0 < is_class.sum() < len(some)
                else None
            )

        return measured

    def macro(measure: Callable[..., float]) -> Callable[[np.ndarray], float | None]:
        def measured(some: np.ndarray) -> float | None:
            values = [of_class(k, measure)(some) for k in range(len(classes))]
            return None if None in values else float(np.mean([v for v in values if v is not None]))

        return measured

    curves: dict[str, Any] = {}
    for k, name in enumerate(classes):
        is_class = truth == k
        curves[name] = None
        if 0 < is_class.sum() < len(is_class):
            fpr, tpr, _ = roc_curve(is_class, scores[:, k])
            steps = np.linspace(0, 1, 11)
            band = {"fpr": steps.tolist(), "low": (steps**2).tolist(), "high": [1.0] * 11}
            curves[name] = {"fpr": fpr.tolist(), "tpr": tpr.tolist(), "band": band}
    return {
        "n": len(rows),
        "patients": len({row[1] for row in rows}),
        "accuracy": {
            name: interval(
                lambda some, is_class=is_class: float((is_class[some] == truth[some]).mean())
            )  # type: ignore[misc]
            for name, is_class in calls.items()
        },
        "confusion": {
            name: [
                [int(((truth == t) & (is_class == c)).sum()) for c in range(len(classes))]
                for t in range(len(classes))
            ]
            for name, is_class in calls.items()
        },
        "roc_curve": curves,
    } | {
        key: {
            "macro": interval(macro(measure)),
            "per_class": {name: interval(of_class(k, measure)) for k, name in enumerate(classes)},
        }
        for key, measure in (
            ("roc_auc", roc_auc_score),
            ("average_precision", average_precision_score),
        )
    }


def add_predictions(run: Path) -> Path:
    """Copy the test slides as new slides without labels."""
    new = run / "predictions"
    (new / "tiles").mkdir(parents=True)
    lines = (run / "tiles.tsv").read_text().splitlines()
    test = [line.split("\t") for line in lines[1:] if line.split("\t")[3] == "test"]
    for cells in test:
        for kind in ("json", "jpg", "parquet", "tfrecord"):
            shutil.copy(run / f"tiles/{cells[0]}.{kind}", new / "tiles")
    columns = ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256")
    write_table(new / "tiles.tsv", columns, [(*c[:2], "", "", *c[4:]) for c in test])
    scored = [line.split("\t") for line in (run / "evaluation/slides.tsv").read_text().splitlines()]
    write_table(
        new / "slides.tsv",
        [*scored[0][:2], *scored[0][3:]],
        [[*cells[:2], *cells[3:]] for cells in scored[1:]],
    )
    table = pq.read_table(run / "evaluation/tiles.parquet")
    pq.write_table(table.drop_columns(["label"]), new / "tiles.parquet")
    return new
