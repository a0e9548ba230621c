"""One manifest over the shards of several runs: no record is copied, and no patient leaks.

The shards stay where they are, and the manifest names them by their place relative to its own; a
run whose tiles are to be shown more often is named so many times in train. In valid each tile
counts once.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError, all_faults
from gigatile.files import checksums, read_json, write_json
from gigatile.records.shards import MANIFEST, SCHEMA, ShardReader
from gigatile.records.volume import VolumeRecord
from gigatile.tables import read_table

SPLITS = ("train", "valid")
# Spacings are nearly equal where one is no more than so many times the other.
NEAR = 1.1


@dataclass(frozen=True)
class Part:
    """A run of which shards are taken.

    Attributes:
        run: its folder, with shards/manifest.json and splits.tsv.
        times: how often an epoch shows each of its train tiles.
    """

    run: Path
    times: int = 1

    @property
    def manifest(self) -> Path:
        """The manifest of its shards."""
        return self.run / "shards" / MANIFEST

    @property
    def splits(self) -> Path:
        """The table of its slides and their splits."""
        return self.run / "splits.tsv"


def join_shards(parts: Sequence[Part], out: Path) -> dict[str, Any]:
    """Write one manifest that names the shards of several runs; return it.

    Args:
        parts: the runs.
        out: folder for manifest.json; none of the runs' own.

    Raises:
        UserError: a run stands there twice, a manifest or a shard is missing or damaged, a patient
            is in different splits (every such patient), or the records are not alike.
    """
    folders = [part.run.resolve() for part in parts]
    for part, folder in zip(parts, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(
                f"{part.run}: named twice; {part.run}=2 has its train tiles shown twice"
            )
        if out.resolve() == part.manifest.parent.resolve():
            raise UserError(f"{out}: has the shards of {part.run}; choose a folder of its own")
    _check_patients(parts)
    _check_alike(parts)
    read = [read_json(part.manifest) for part in parts]
    classes = sorted({label for manifest in read for label in manifest["classes"]})
    sources = [path for part in parts for path in (part.manifest, part.splits)]
    joined = {
        "schema": SCHEMA,
        "inputs": checksums({_seen_from(out, path): path for path in sources}),
        "times": {_seen_from(out, part.manifest): part.times for part in parts},
        "classes": classes,
        "splits": {split: _join_split(split, parts, read, classes, out) for split in SPLITS},
    }
    write_json(out / MANIFEST, joined)
    return joined


def _seen_from(folder: Path, path: Path) -> str:
    # Both without links, since the system follows a link before it goes up from where that leads.
    return os.path.relpath(path.resolve(), folder.resolve())


def _join_split(
    split: str, parts: Sequence[Part], read: Sequence[Any], classes: list[str], out: Path
) -> dict[str, Any]:
    units = _units_of(read[0])
    joined: dict[str, Any] = {"records": 0, units: 0, "by_label": {}, "shards": []}
    counts: dict[str, int] = {}
    for part, manifest in zip(parts, read, strict=True):
        described = manifest["splits"][split]
        times = part.times if split == "train" else 1
        joined["records"] += times * described["records"]
        joined[units] += described[units]
        for label, count in described["by_label"].items():
            counts[label] = counts.get(label, 0) + times * count
        for shard in described["shards"] * times:
            entry = shard | {
                key: _seen_from(out, part.manifest.parent / shard[key]) for key in ("file", "index")
            }
            own = shard.get("classes", manifest["classes"])
            # The numbers in an index are of the classes that its own run knew.
            joined["shards"].append(entry if own == classes else entry | {"classes": own})
    joined["by_label"] = dict(sorted(counts.items()))
    return joined


def _check_patients(parts: Sequence[Part]) -> None:
    """Refuse runs of which one trains on a patient that another one tests on, or the like."""
    found: dict[str, dict[str, list[str]]] = {}
    for part in parts:
        for row in read_table(part.splits, ("patient", "split")):
            runs = found.setdefault(row["patient"], {}).setdefault(row["split"], [])
            if str(part.run) not in runs:
                runs.append(str(part.run))
    leaking = {patient: splits for patient, splits in found.items() if len(splits) > 1}
    if leaking:
        faults = [
            f"{patient}: "
            + ", ".join(f"{split} in {' and '.join(runs)}" for split, runs in splits.items())
            for patient, splits in sorted(leaking.items())
        ]
        raise all_faults(
            f"{len(faults)} patient(s) stand in different splits; fix them with the sheets' column "
            "`split`, or take the same split.seed for all runs",
            faults,
            at_most=len(faults),
        )


def _units_of(manifest: Any) -> str:
    """Return what the records of a manifest are of: `slides` or `cases`."""
    return "cases" if "cases" in manifest["splits"][SPLITS[0]] else "slides"


def _check_alike(parts: Sequence[Part]) -> None:
    """Refuse what no batch could hold together, by the first record of each split of each run.

    Tiles of different sizes; volumes of other channels, or of spacings that are not nearly equal:
    a volume's own differs from the wanted one by less than a voxel over its whole extent.
    """
    found = {}
    for part in parts:
        of_cases = _units_of(read_json(part.manifest)) == "cases"
        look_of = _look_of_case if of_cases else _look_of_tile
        for split in SPLITS:
            reader = ShardReader(part.manifest, split)
            if len(reader):
                found[str(part.run)] = look_of(reader)
            reader.close()
    first, *others = found.values() or [_Look("", ())]
    if any(not first.is_like(other) for other in others):
        listed = ", ".join(f"{look} in {run}" for run, look in found.items())
        raise UserError(f"the records differ: {listed}; make them with the same settings")


@dataclass(frozen=True)
class _Look:
    """What records are, and of volumes the spacing in mm."""

    what: str
    spacing: tuple[float, ...] = ()

    def is_like(self, other: "_Look") -> bool:
        """Return whether a batch can hold both."""
        near = all(
            max(pair) <= NEAR * min(pair) for pair in zip(self.spacing, other.spacing, strict=False)
        )
        return self.what == other.what and near

    def __str__(self) -> str:
        sides = "×".join(f"{side:.3g}" for side in self.spacing)
        return f"{self.what} at {sides} mm" if sides else self.what


def _look_of_tile(reader: ShardReader) -> _Look:
    height, width, _ = reader[0].pixels().shape
    return _Look(f"tiles of {width}×{height}")


def _look_of_case(reader: ShardReader) -> _Look:
    head = VolumeRecord(*reader.place(0)).head
    return _Look(f"volumes of {', '.join(head.channels)}", tuple(head.grid.get("spacing", ())))
