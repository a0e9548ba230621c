"""Join the shards of several runs under one manifest.

No record is copied: the manifest lists the shards where they are, with paths relative to itself. To
show the tiles of a run several times per epoch, train lists its shards several times. In valid each
tile counts once.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gigatile.errors import UserError, all_faults
from gigatile.files import checksums
from gigatile.json_models import write_model
from gigatile.records.manifest import MANIFEST, Manifest, Shard, ShardedSplit, read_manifest
from gigatile.records.shards import ShardReader, check_number_of_labels
from gigatile.records.volume import VolumeRecord
from gigatile.stores.addresses import is_address
from gigatile.tables import read_table

SPLITS = ("train", "valid")
# The largest ratio of two spacings that a batch may mix.
MAX_SPACING_RATIO = 1.1


@dataclass(frozen=True)
class Part:
    """A run with shards to join.

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


def join_shards(parts: Sequence[Part], out: Path) -> Manifest:
    """Write one manifest that lists the shards of several runs; return it.

    Args:
        parts: the runs.
        out: folder for manifest.json, different from the folders of the runs.

    Raises:
        UserError: a run is named twice, a manifest or a shard is missing or damaged, patients are
            in different splits (names each of them), or the records are not alike.
    """
    folders = [part.run.resolve() for part in parts]
    for part, folder in zip(parts, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(
                f"{part.run}: named twice; write {part.run}=2 to show its train tiles twice"
            )
        if out.resolve() == part.manifest.parent.resolve():
            raise UserError(f"{out}: contains the shards of {part.run}; choose another folder")
    _check_patients(parts)
    manifests = [read_manifest(part.manifest) for part in parts]
    _check_alike(parts, manifests)
    classes = sorted({label for manifest in manifests for label in manifest.classes})
    check_number_of_labels(classes)
    inputs = [path for part in parts for path in (part.manifest, part.splits)]
    joined = Manifest(
        inputs=checksums({_relative(path, out): path for path in inputs}),
        times={_relative(part.manifest, out): part.times for part in parts},
        classes=classes,
        splits={split: _join_split(split, parts, manifests, classes, out) for split in SPLITS},
    )
    write_model(out / MANIFEST, joined)
    return joined


def _relative(path: Path, folder: Path) -> str:
    # Resolve links in both: `..` after a link leads to the parent of the link's target.
    return os.path.relpath(path.resolve(), folder.resolve())


def _join_split(
    split: str,
    parts: Sequence[Part],
    manifests: Sequence[Manifest],
    classes: list[str],
    out: Path,
) -> ShardedSplit:
    by_label: dict[str, int] = {}
    shards: list[Shard] = []
    records = members = 0
    for part, manifest in zip(parts, manifests, strict=True):
        content = manifest.splits[split]
        times = part.times if split == "train" else 1
        records += times * content.records
        members += content.members
        for label, count in content.by_label.items():
            by_label[label] = by_label.get(label, 0) + times * count
        for shard in content.shards * times:
            folder = part.manifest.parent
            changes = {"index": _relative(folder / shard.index, out)}
            if not is_address(shard.file):
                changes["file"] = _relative(folder / shard.file, out)
            # The numbers in an index refer to the classes of the run.
            run_classes = manifest.classes if shard.classes is None else shard.classes
            shards.append(
                shard.model_copy(
                    update=changes | ({} if run_classes == classes else {"classes": run_classes})
                )
            )
    return ShardedSplit(
        records=records,
        unit=manifests[0].unit,
        members=members,
        by_label=dict(sorted(by_label.items())),
        shards=shards,
    )


def _check_patients(parts: Sequence[Part]) -> None:
    """Refuse runs that have the same patient in different splits."""
    runs_of: dict[str, dict[str, list[str]]] = {}
    for part in parts:
        for row in read_table(part.splits, ("patient", "split")):
            runs = runs_of.setdefault(row["patient"], {}).setdefault(row["split"], [])
            if str(part.run) not in runs:
                runs.append(str(part.run))
    leaking = {patient: splits for patient, splits in runs_of.items() if len(splits) > 1}
    if leaking:
        faults = [
            f"{patient}: "
            + ", ".join(f"{split} in {' and '.join(runs)}" for split, runs in splits.items())
            for patient, splits in sorted(leaking.items())
        ]
        raise all_faults(
            f"{len(faults)} patient(s) are in different splits; fix their splits in the column "
            "`split` of the sheets, or use the same split.seed for all runs",
            faults,
            at_most=len(faults),
        )


def _check_alike(parts: Sequence[Part], manifests: Sequence[Manifest]) -> None:
    """Refuse records that cannot share a batch, by the first record of each split of each run.

    These are tiles of different sizes, and volumes with different channels or with spacings that
    are not nearly equal. (The spacing of a volume differs from the setting by less than a voxel
    over its whole extent.)
    """
    formats = {}
    for part, manifest in zip(parts, manifests, strict=True):
        format_of = _case_format if manifest.unit == "case" else _tile_format
        for split in SPLITS:
            reader = ShardReader(part.manifest, split)
            if len(reader):
                formats[str(part.run)] = format_of(reader)
            reader.close()
    first, *others = formats.values() or [_RecordFormat("")]
    if any(not first.is_like(other) for other in others):
        listed = ", ".join(f"{form} in {run}" for run, form in formats.items())
        raise UserError(f"the records differ: {listed}; make them with the same settings")


@dataclass(frozen=True)
class _RecordFormat:
    """What a record contains, and the spacing of a volume in mm."""

    content: str
    spacing: tuple[float, ...] = ()

    def is_like(self, other: "_RecordFormat") -> bool:
        """Return whether both fit into one batch."""
        pairs = zip(self.spacing, other.spacing, strict=False)
        near = all(max(pair) <= MAX_SPACING_RATIO * min(pair) for pair in pairs)
        return self.content == other.content and near

    def __str__(self) -> str:
        sides = "×".join(f"{side:.3g}" for side in self.spacing)
        return f"{self.content} at {sides} mm" if sides else self.content


def _tile_format(reader: ShardReader) -> _RecordFormat:
    height, width, _ = reader[0].pixels().shape
    return _RecordFormat(f"tiles of {width}×{height}")


def _case_format(reader: ShardReader) -> _RecordFormat:
    head = VolumeRecord(*reader.locate(0)).head
    return _RecordFormat(f"volumes of {', '.join(head.channels)}", head.spacing)
