"""Write shards, with one process or with many ranks: the bytes are the same.

The records of all slides of a split are grouped at random. `lay_out_shards` decides which record
goes where; then the ranks take turns in writing shards. A rank holds one shard in memory.
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gigatile.errors import UserError
from gigatile.files import sha256_of, write_whole
from gigatile.json_models import write_model
from gigatile.parallel.world import World
from gigatile.records.files import DiskFile
from gigatile.records.manifest import MANIFEST, Manifest, Shard, ShardedSplit
from gigatile.records.shard_layout import (
    LENGTH,
    OFFSET,
    SOURCE,
    ShardLayout,
    Source,
    lay_out_shards,
    slide_or_case_of,
)
from gigatile.records.shards import check_number_of_labels
from gigatile.records.shuffle import key64
from gigatile.records.tfrecord import read_extended
from gigatile.settings.shards import ShardSettings
from gigatile.stores.addresses import parse_address

if TYPE_CHECKING:  # an edit of one layout must not rerun tasks with another
    from gigatile.records.slide_layout import SlideLayout

    Layout = ShardLayout | SlideLayout

# Takes the arguments of `lay_out_shards`.
LayOut = Callable[..., "Layout"]
# The folder of the layout's runs; it is deleted once the shards are written.
LAYOUT = ".layout"
# Shards and their indexes, also under the temporary names that a killed run leaves.
SHARDS = "*-?????-of-?????*"
# Digits of its checksum in the name of a shard in a store.
NAME_DIGITS = 32


def stall_limit(settings: ShardSettings) -> int:
    """Return the seconds that a rank may wait for another: a shard is written, on a slow disk."""
    return round(600 + 10 * settings.target_mb)


def write_shards(
    sources: Mapping[str, Sequence[Source]],
    settings: ShardSettings,
    out: Path,
    world: World | None = None,
    inputs: Mapping[str, str] | None = None,
    unit: str = "slide",
    record_id: Callable[[Path], str] = slide_or_case_of,
    lay_out: LayOut = lay_out_shards,
) -> None:
    """Write the shards of each split, then the manifest that lists them.

    Args:
        sources: the slides or cases of each split.
        settings: target size of a shard, the seed, and the store for the shards.
        out: the output folder, also of the indexes of shards in a store. Existing shards and
            leftovers of a killed run are deleted; other files stay.
        world: the ranks that write; None: this process alone.
        inputs: names and SHA-256 of the input files, for the manifest.
        unit: `slide` or `case`.
        record_id: returns the slide or case that a file of records belongs to.
        lay_out: decides which record goes where.

    Raises:
        UserError: a record file is damaged or belongs to another slide, or a split is empty. Every
            rank raises it.
    """
    world = world or World()
    world.on_rank0(partial(_prepare, sources, out, unit))
    labels = sorted({source.label for split in sources.values() for source in split})
    check_number_of_labels(labels)
    try:
        layouts = []
        for split, in_split in sources.items():
            ordered = sorted(in_split, key=lambda source: source.slide)
            layouts.append(lay_out(world, split, ordered, settings, out / LAYOUT, record_id))
        shards = [(layout, shard) for layout in layouts for shard in range(layout.shards)]
        writer = _Writer(shards, labels, out, world, settings.store)
        written: list[Shard] = []
        # The ranks synchronise after each round, so an error on one rank ends all of them soon.
        for begin in range(0, len(shards), world.size):
            entries = world.gather(partial(writer.write, begin + world.rank))
            written += [entry for entry in entries if entry is not None]
    finally:
        if world.rank == 0:
            shutil.rmtree(out / LAYOUT, ignore_errors=True)
    remaining = iter(written)
    manifest = Manifest(
        inputs=dict(inputs or {}),
        seed=settings.seed,
        target_mb=settings.target_mb,
        classes=[label for label in labels if label],
        splits={
            layout.split: _sharded_split(layout, unit, list(islice(remaining, layout.shards)))
            for layout in layouts
        },
    )
    world.on_rank0(partial(write_model, out / MANIFEST, manifest))


def _member_keys(sources: Sequence[Source]) -> np.ndarray:
    """Return keys of the slide and of the patient of each source: (2, sources) uint64.

    Slides of two patients have different keys, even if their ids are equal, as in joined runs.
    """
    keys = [(key64(source.patient, source.slide), key64(source.patient)) for source in sources]
    return np.array(keys, np.uint64).reshape(-1, 2).T


def _prepare(sources: Mapping[str, Sequence[Source]], out: Path, unit: str) -> None:
    for split, in_split in sources.items():
        if not in_split:
            raise UserError(f"no {unit} with records in {split}; it cannot be sharded")
    (out / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(out / LAYOUT, ignore_errors=True)
    (out / LAYOUT).mkdir(parents=True)
    for path in out.glob(SHARDS):
        path.unlink()


class _Writer:
    """Writes shards one by one."""

    def __init__(
        self,
        shards: Sequence[tuple["Layout", int]],
        labels: Sequence[str],
        out: Path,
        world: World,
        store: str | None,
    ) -> None:
        self._shards, self._out, self._world = shards, out, world
        self._numbers = {label: number for number, label in enumerate(labels)}
        self._store = store
        # Reused for every shard: allocating the memory takes as long as copying the records.
        self._buffer = np.empty(0, np.uint8)
        layouts = {layout.split: layout for layout, _ in shards}
        self._keys = {split: _member_keys(layout.sources) for split, layout in layouts.items()}

    def write(self, index: int) -> Shard | None:
        """Write a shard and its index; return its entry in the manifest.

        Return None past the last shard: in the last round some ranks have nothing to write.
        """
        if index >= len(self._shards):
            return None
        layout, shard = self._shards[index]
        records = layout.shard_records(shard)
        appended = np.array(list(map(len, layout.sheet_fields)), np.int64)
        lengths = records[LENGTH].astype(np.int64) + appended[records[SOURCE].astype(np.int64)]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        content = self._allocate(int(ends[-1]) if len(ends) else 0)
        self._copy(layout, records, starts, lengths, content)
        labels = np.array([self._numbers[source.label] for source in layout.sources])
        sources = records[SOURCE].astype(np.int64)
        entries = np.empty(len(starts), layout.index_type)
        entries["offset"], entries["label"] = starts, labels[sources]
        entries["slide"], entries["patient"] = self._keys[layout.split][:, sources]
        layout.complete_index(entries, sources, content)
        name = f"{layout.split}-{shard:05d}-of-{layout.shards:05d}"
        written = self._write_content(name, content)
        index_path = self._out / f"{name}.index.npy"
        with write_whole(index_path) as temporary:
            np.save(temporary, entries)
        return Shard(
            **written,
            records=len(entries),
            bytes=len(content),
            index=index_path.name,
            index_sha256=sha256_of(index_path),
            slides=layout.slides_in(shard),
        )

    def _write_content(self, name: str, content: memoryview) -> dict[str, Any]:
        """Write the file of a shard; return its name or address, its checksum and version."""
        if self._store is not None:
            from gigatile.stores.uploading import upload

            sha256 = hashlib.sha256(content).hexdigest()
            # Runs that share the folder in the store, and a run that writes again, never replace
            # a file that a manifest lists.
            address = f"{self._store}/{name}-{sha256[:NAME_DIGITS]}.tfrecord"
            version = upload(parse_address(address), content)
            self._world.report_progress(f"after writing {address}")
            return {"file": address, "sha256": sha256, "version": version}
        path = self._out / f"{name}.tfrecord"
        with ThreadPoolExecutor(1) as hashing:
            digest = hashing.submit(hashlib.sha256, content)
            with write_whole(path) as temporary:
                temporary.write_bytes(content)
        return {"file": path.name, "sha256": digest.result().hexdigest()}

    def _allocate(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = np.empty(0, np.uint8)  # free the old buffer before allocating
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size].data

    def _copy(
        self,
        layout: "Layout",
        records: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        content: memoryview,
    ) -> None:
        """Copy the records of a shard into `content`; each record file is read front to back."""
        indices, counts = np.unique(records[SOURCE], return_counts=True)
        order = np.lexsort((records[OFFSET], records[SOURCE]))
        copies = np.stack([records[OFFSET].astype(np.int64), starts, lengths])
        parts = np.split(copies[:, order], np.cumsum(counts)[:-1], axis=1)
        for index, part in zip(indices.tolist(), parts, strict=False):
            path, sheet_fields = layout.sources[index].records, layout.sheet_fields[index]
            with DiskFile(path) as file:
                for offset, start, length in part.T.tolist():
                    read_extended(file, offset, content[start : start + length], sheet_fields)
            self._world.report_progress(f"after records of {path}")


def _sharded_split(layout: "Layout", unit: str, shards: list[Shard]) -> ShardedSplit:
    by_label: dict[str, int] = {}
    for source, count in zip(layout.sources, layout.record_counts.tolist(), strict=True):
        if source.label:
            by_label[source.label] = by_label.get(source.label, 0) + count
    return ShardedSplit(
        records=int(layout.record_counts.sum()),
        unit=unit,
        members=len(layout.sources),
        by_label=dict(sorted(by_label.items())),
        shards=shards,
    )
