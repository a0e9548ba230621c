"""The scores of a slide and its map: maps/<slide>.json and maps/<slide>.parquet."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from gigatile.errors import UserError, all_faults
from gigatile.files import checksums, combined_checksum, sha256_of, write_whole
from gigatile.json_models import JsonModel, read_model, write_model

SCHEMA = 1


class SlideScoreState(JsonModel):
    """The scores of a slide; one that cannot be scored has the reason instead.

    Attributes:
        schema_version: of the file's format.
        slide: the slide's id.
        reason: why the slide was not scored.
        scores: of each class, with six decimals.
        positions: the number of positions on the map.
        inputs: the SHA-256 of the model and of the slide's records.
        sha256: of the map.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    slide: str
    state: Literal["scored", "failed"]
    reason: str | None = None
    scores: dict[str, float] = Field(default_factory=dict, exclude_if=lambda scores: not scores)
    positions: int = Field(0, exclude_if=lambda positions: not positions)
    inputs: dict[str, str] = Field(default_factory=dict, exclude_if=lambda inputs: not inputs)
    sha256: str | None = None


def write_scores(
    slide: str,
    classes: Sequence[str],
    scores: Sequence[float],
    positions: pd.DataFrame,
    map_path: Path,
    state: Path,
    inputs: Mapping[str, str],
) -> None:
    """Write the map of a slide and, last, its scores.

    Args:
        slide: the slide's id.
        classes: in the order of the scores.
        scores: of the slide.
        positions: a row for each position: x, y, side in pixels of level 0, p_<class>… .
        map_path, state: the files to write.
        inputs: the SHA-256 of the model and of the slide's records.
    """
    columns = {
        name: pa.array(
            positions[name].to_numpy(),
            pa.float64() if name in ("x", "y", "side") else pa.float32(),
        )
        for name in positions
    }
    with write_whole(map_path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
    write_model(
        state,
        SlideScoreState(
            slide=slide,
            state="scored",
            scores=dict(zip(classes, map(float, scores), strict=True)),
            positions=len(positions),
            inputs=dict(inputs),
            sha256=sha256_of(map_path),
        ),
    )


def record_scores(
    args: argparse.Namespace, classes: Sequence[str], scores: np.ndarray, positions: pd.DataFrame
) -> None:
    """Write the map and the scores of a slide, and print the scores.

    Args:
        args: of scripts/predict.py: slide, records, model, map and out.
        classes, positions: see `write_scores`.
        scores: (classes,).
    """
    inputs = checksums(
        {
            "model/model.keras": args.model,
            f"{args.records.parent.name}/{args.records.name}": args.records,
        }
    )
    write_scores(args.slide, classes, scores.tolist(), positions, args.map, args.out, inputs)
    shown = ", ".join(f"{name} {score:.3f}" for name, score in zip(classes, scores, strict=True))
    print(f"{args.slide}: {shown}; {len(positions)} positions")


def skip_slide(slide: str, reason: str, map_path: Path, state: Path) -> None:
    """Write an empty map and the state of a slide that cannot be scored."""
    with write_whole(map_path):
        pass
    write_model(state, SlideScoreState(slide=slide, state="failed", reason=reason))


def read_scores(
    rows: Sequence[Mapping[str, str]], maps: Path, names: Sequence[str]
) -> list[tuple[Mapping[str, str], list[float]]]:
    """Return the rows of the scored slides, each with its scores.

    A slide that was not scored is left out; its reason is in its file and in the log.

    Args:
        rows: of the table of slides.
        maps: folder of <slide>.json.
        names: of the scores.

    Raises:
        UserError: a file is of another slide or has other scores, or no slide was scored.
    """
    scored: list[tuple[Mapping[str, str], list[float]]] = []
    reasons = []
    for row in rows:
        path = maps / f"{row['slide']}.json"
        state = read_model(SlideScoreState, path)
        if state.slide == row["slide"] and state.state == "failed":
            reasons.append(f"{state.slide}: {state.reason}")
            print(f"not scored: {reasons[-1]}")
            continue
        if state.slide != row["slide"] or list(state.scores) != list(names):
            raise UserError(
                f"{path}: has no scores of slide {row['slide']!r} for {', '.join(names)}; delete "
                "it and run again"
            )
        scored.append((row, list(state.scores.values())))
    if reasons and not scored:
        raise all_faults(f"{maps}: no slide was scored", reasons)
    return scored


def checksums_of_scores(
    args: argparse.Namespace, rows: Sequence[Mapping[str, str]], slides: Path
) -> dict[str, str]:
    """Return the SHA-256 of what the figures of some slides depend on, by name.

    Args:
        args: of scripts/evaluate.py: described, table, maps and new.
        rows: of the slides.
        slides: the table of their scores.
    """
    folder, unit = ("predictions", "new") if args.new else ("evaluation", "test")
    table = "predictions/tiles.tsv" if args.new else "tiles.tsv"
    sums = checksums(
        {"model/settings.json": args.described, table: args.table, f"{folder}/slides.tsv": slides}
    )
    names = [f"{row['slide']}.json" for row in rows]
    sums[f"{folder}/maps/<slide>.json of the {unit} slides"] = combined_checksum(
        {f"{folder}/maps/{name}": sha256_of(args.maps / name) for name in names}
    )
    return sums
