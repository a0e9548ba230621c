"""Writing shards: by one process or by many, with the same bytes.

The first step of the shuffle, one record file per slide, is done when slides are tiled. Here the
records of all slides of a split are grouped at random: `gigatile/records/plan.py` says which goes
where, and the ranks write the shards in turn. One shard is in a rank's memory at a time.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json, write_whole
from gigatile.parallel.world import World
from gigatile.records.plan import LENGTH, OFFSET, SLIDE, Plan, Source, make_plan
from gigatile.records.shards import INDEX, MANIFEST, SCHEMA
from gigatile.records.tfrecord import read_extended
from gigatile.settings.shards import ShardSettings

# The folder of the plan, gone when the shards are there.
PLAN = ".plan"
# Shards and their indexes, also under the temporary names that a killed run leaves.
SHARDS = "*-?????-of-?????*"


def stall_limit(settings: ShardSettings) -> int:
    """Return how many seconds a rank may wait for another: a shard's, on a very slow disk."""
    return round(600 + 10 * settings.target_mb)


def write_shards(
    sources: Mapping[str, Sequence[Source]],
    settings: ShardSettings,
    out: Path,
    world: World | None = None,
    inputs: Mapping[str, str] | None = None,
    unit: str = "slide",
) -> None:
    """Write the shards of each split, and last the manifest that names them.

    Args:
        sources: the slides, or cases, of each split.
        settings: wanted size of a shard, and the seed of the shuffle.
        out: the folder. Shards in it are deleted, and what a killed run left; nothing else.
        world: the ranks that write; None: this process alone.
        inputs: what the manifest says it was made from: names, and their SHA-256.
        unit: what the sources are: `slide` or `case`.

    Raises:
        UserError: a record file is damaged or of another slide, or a split has no slide. Each rank
            raises it.
    """
    world = world or World()
    world.on_rank0(partial(_prepare, sources, out, unit))
    labels = sorted({source.label for split in sources.values() for source in split})
    try:
        plans = []
        for split, slides in sources.items():
            ordered = sorted(slides, key=lambda source: source.slide)
            plans.append(make_plan(world, split, ordered, settings, out / PLAN))
        shards = [(plan, shard) for plan in plans for shard in range(plan.shards)]
        writer = _Writer(shards, labels, out, world)
        written: list[dict[str, Any]] = []
        # After each round the ranks meet, so a fault of one ends all of them soon.
        for begin in range(0, len(shards), world.size):
            found = world.gather(partial(writer.write, begin + world.rank))
            written += [shard for shard in found if shard is not None]
    finally:
        if world.rank == 0:
            shutil.rmtree(out / PLAN, ignore_errors=True)
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "inputs": dict(inputs or {}),
        "seed": settings.seed,
        "target_mb": settings.target_mb,
        "classes": [label for label in labels if label],
        "splits": {plan.split: _describe(plan, unit) for plan in plans},
    }
    for (plan, _), shard in zip(shards, written, strict=True):
        manifest["splits"][plan.split]["shards"].append(shard)
    world.on_rank0(partial(write_json, out / MANIFEST, manifest))


def _prepare(sources: Mapping[str, Sequence[Source]], out: Path, unit: str) -> None:
    for split, slides in sources.items():
        if not slides:
            raise UserError(
                f"no {unit} with records is in {split}; there is nothing to make shards of"
            )
    (out / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(out / PLAN, ignore_errors=True)
    (out / PLAN).mkdir(parents=True)
    for path in out.glob(SHARDS):
        path.unlink()


class _Writer:
    """Writes shards, one after the other, and describes them."""

    def __init__(
        self, shards: Sequence[tuple[Plan, int]], labels: Sequence[str], out: Path, world: World
    ) -> None:
        self._shards, self._labels, self._out, self._world = shards, labels, out, world
        # Used for shard after shard: to get memory anew from the system takes as long as a copy.
        self._buffer = np.empty(0, np.uint8)

    def write(self, number: int) -> dict[str, Any] | None:
        """Write a shard and its index; return how the manifest names them.

        Past the last shard nothing is done: the last round may have none for this rank.
        """
        if number >= len(self._shards):
            return None
        plan, shard = self._shards[number]
        rows = plan.rows(shard)
        more = np.array(list(map(len, plan.whose)), np.int64)
        lengths = rows[LENGTH].astype(np.int64) + more[rows[SLIDE].astype(np.int64)]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        content = self._space(int(ends[-1]) if len(ends) else 0)
        self._gather(plan, rows, starts, lengths, content)
        path = self._out / f"{plan.split}-{shard:05d}-of-{plan.shards:05d}.tfrecord"
        with ThreadPoolExecutor(1) as beside:
            digest = beside.submit(hashlib.sha256, content)
            with write_whole(path) as temporary:
                temporary.write_bytes(content)
        label = np.array([self._labels.index(source.label) for source in plan.slides])
        entries = np.empty(len(starts), INDEX)
        entries["offset"], entries["label"] = starts, label[rows[SLIDE].astype(np.int64)]
        index = path.with_suffix(".index.npy")
        with write_whole(index) as temporary:
            np.save(temporary, entries)
        return {
            "file": path.name,
            "records": len(entries),
            "bytes": len(content),
            "sha256": digest.result().hexdigest(),
            "index": index.name,
            "index_sha256": sha256_of(index),
        }

    def _space(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = np.empty(0, np.uint8)  # given back before more is taken
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size].data

    def _gather(
        self,
        plan: Plan,
        rows: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        content: memoryview,
    ) -> None:
        """Copy a shard's records to their places; each file is read from its start to its end."""
        slides, counts = np.unique(rows[SLIDE], return_counts=True)
        order = np.lexsort((rows[OFFSET], rows[SLIDE]))
        wanted = np.stack([rows[OFFSET].astype(np.int64), starts, lengths])
        parts = np.split(wanted[:, order], np.cumsum(counts)[:-1], axis=1)
        for slide, part in zip(slides.tolist(), parts, strict=False):
            path, more = plan.slides[slide].records, plan.whose[slide]
            with path.open("rb", buffering=0) as handle:
                for offset, start, length in part.T.tolist():
                    frame = content[start : start + length]
                    read_extended(handle.fileno(), offset, frame, more, path)
            self._world.report_progress(f"after records of {path}")


def _describe(plan: Plan, unit: str) -> dict[str, Any]:
    by_label: dict[str, int] = {}
    for source, count in zip(plan.slides, plan.counts.tolist(), strict=True):
        if source.label:
            by_label[source.label] = by_label.get(source.label, 0) + count
    return {
        "records": int(plan.counts.sum()),
        f"{unit}s": len(plan.slides),
        "by_label": dict(sorted(by_label.items())),
        "shards": [],
    }
