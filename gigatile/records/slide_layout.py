"""Assign whole slides to shards: the tiles of a slide stay together, in the order of its grid.

For tasks that take slides, not tiles, as samples. The slides are shuffled, and cut into shards of
about equal size. The index of a shard has the cell of each tile, and the manifest lists the slides.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gigatile.errors import UserError, all_faults
from gigatile.parallel.world import World
from gigatile.records.example import first_ints
from gigatile.records.manifest import MAX_MPP_RATIO, SlideInShard
from gigatile.records.shard_layout import (
    LENGTH,
    OFFSET,
    SOURCE,
    SlideGrid,
    Source,
    assigned_sources,
    check_id,
    file_sizes,
    refuse,
    slide_or_case_of,
)
from gigatile.records.shards import SLIDE_INDEX
from gigatile.records.shuffle import key64
from gigatile.records.tfrecord import FOOTER, HEADER, record_offsets
from gigatile.settings.shards import ShardSettings


@dataclass(frozen=True)
class SlideLayout:
    """Which slides go into which shard, in which order; compare `ShardLayout`.

    Attributes:
        split: train, valid or test.
        sources: the slides, in the order of the shards.
        grids: the tile grid of each slide.
        record_counts: (sources,) int64.
        bounds: (shards + 1,) index of the first slide of each shard.
        may_overlap: whether several tiles of a slide may be in a cell of its grid.
    """

    split: str
    sources: Sequence[Source]
    grids: Sequence[SlideGrid]
    record_counts: np.ndarray
    bounds: Sequence[int]
    may_overlap: bool = False

    index_type = SLIDE_INDEX

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1

    @cached_property
    def sheet_fields(self) -> list[bytes]:
        """`Source.sheet_fields` of each source."""
        return [source.sheet_fields for source in self.sources]

    def shard_records(self, shard: int) -> np.ndarray:
        """Return the records of a shard in their order: (4, n) uint64, rows as in `ShardLayout`."""
        parts = []
        for number in range(*self.bounds[shard : shard + 2]):
            path = self.sources[number].records
            offsets = record_offsets(path)
            part = np.zeros((4, len(offsets)), np.uint64)
            part[SOURCE], part[OFFSET] = number, offsets
            part[LENGTH] = np.diff(offsets, append=path.stat().st_size)
            parts.append(part)
        return np.concatenate(parts, axis=1)

    def complete_index(self, entries: np.ndarray, sources: np.ndarray, content: memoryview) -> None:
        """Write the cells of the tiles into the index of a shard.

        Args:
            entries: (n,) `SLIDE_INDEX`, with the offsets.
            sources: (n,) the slide of each record.
            content: the bytes of the shard.

        Raises:
            UserError: a tile is not on the grid of its slide, or two that may not overlap have the
                same cell.
        """
        ends = [*entries["offset"][1:].tolist(), len(content)]
        cells: set[tuple[int, int, int]] = set()
        for number, (source, start, end) in enumerate(
            zip(sources.tolist(), entries["offset"].tolist(), ends, strict=True)
        ):
            grid, path = self.grids[source], self.sources[source].records
            data = bytes(content[start + HEADER.size : end - FOOTER.size])
            try:
                x, y = first_ints(data, "x", "y")
            except ValueError as error:
                raise _wrong_tiles(path, f"has a record that is not a tile ({error})") from None
            column, row = round(x / grid.extent), round(y / grid.extent)
            if not (0 <= column < grid.columns and 0 <= row < grid.rows):
                raise _wrong_tiles(path, f"its tile at ({x}, {y}) is not on the slide's grid")
            if (source, column, row) in cells and not self.may_overlap:
                raise _wrong_tiles(path, f"two of its tiles are at ({x}, {y})")
            cells.add((source, column, row))
            entries["column"][number], entries["row"][number] = column, row

    def slides_in(self, shard: int) -> list[SlideInShard]:
        """Return the slides of a shard, for the manifest."""
        return [
            SlideInShard(
                slide=self.sources[number].slide,
                tiles=int(self.record_counts[number]),
                columns=self.grids[number].columns,
                rows=self.grids[number].rows,
                extent=self.grids[number].extent,
                mpp=self.grids[number].mpp,
            )
            for number in range(*self.bounds[shard : shard + 2])
        ]


def lay_out_slides(
    world: World,
    split: str,
    sources: Sequence[Source],
    settings: ShardSettings,
    folder: Path,
    record_id: Callable[[Path], str] = slide_or_case_of,
    may_overlap: bool = False,
) -> SlideLayout:
    """Compute the shard layout of a split. Collective: every rank must call it.

    Args:
        world: the ranks.
        split: train, valid or test.
        sources: slides of the split, with their grids.
        settings: target size of a shard, and the seed.
        folder: not used.
        record_id: returns the slide that a file of records belongs to.
        may_overlap: see `SlideLayout`.

    Raises:
        UserError: names every record file that is missing, damaged or of another slide.
    """
    sizes = world.on_rank0(partial(file_sizes, sources))
    scan = partial(_scan, sources, assigned_sources(sizes, world), record_id, world.report_progress)
    scanned = world.gather(scan)
    faults = [fault for _, of_rank in scanned for fault in of_rank]
    if faults:
        world.on_rank0(partial(refuse, split, faults))
    slides_by_number = {number: slide for slides, _ in scanned for number, slide in slides.items()}
    world.on_rank0(partial(_check_scale, split, slides_by_number, sources))
    order = sorted(
        slides_by_number, key=lambda number: key64("slides", settings.seed, sources[number].slide)
    )
    counts = np.array([slides_by_number[number].tiles for number in order], np.int64)
    appended = np.array([len(sources[number].sheet_fields) for number in order], np.int64)
    return SlideLayout(
        split,
        [sources[number] for number in order],
        [slides_by_number[number].grid for number in order],
        counts,
        _bounds(sizes[order] + counts * appended, settings.target_mb * 1e6),
        may_overlap,
    )


class _Scanned(NamedTuple):
    tiles: int
    grid: SlideGrid


def _scan(
    sources: Sequence[Source],
    assigned: Sequence[int],
    record_id: Callable[[Path], str],
    report_progress: Callable[[str], None],
) -> tuple[dict[int, _Scanned], list[str]]:
    """Return the number of tiles and the grid of some slides, by their index, and faults."""
    scanned: dict[int, _Scanned] = {}
    faults: list[str] = []
    for number in assigned:
        source = sources[number]
        try:
            offsets = record_offsets(source.records)
            check_id(source, record_id)
            scanned[number] = _Scanned(len(offsets), _grid_of(source))
        except UserError as fault:
            faults.append(str(fault))
        report_progress(f"after the headers of {source.records}")
    return scanned, faults


def _wrong_tiles(path: Path, fault: str) -> UserError:
    return UserError(f"{path}: {fault}; delete the file and run again")


def _grid_of(source: Source) -> SlideGrid:
    if source.grid is None:
        raise UserError(
            f"{source.records}: the table of slides has no tile grid of {source.slide!r}"
        )
    return source.grid


def _check_scale(split: str, scanned: Mapping[int, _Scanned], sources: Sequence[Source]) -> None:
    """Refuse slides of different scales: an encoder would see them at different magnifications."""
    known = {
        sources[number].slide: slide.grid.mpp
        for number, slide in sorted(scanned.items())
        if slide.grid.mpp is not None
    }
    if not known or max(known.values()) <= MAX_MPP_RATIO * min(known.values()):
        return
    usual = statistics.median(known.values())
    others = [
        f"{slide}: {mpp:g} µm per pixel"
        for slide, mpp in known.items()
        if max(mpp, usual) > MAX_MPP_RATIO * min(mpp, usual)
    ]
    raise all_faults(
        f"{split}: the tiles of most slides have about {usual:g} µm per pixel, but those of "
        f"{len(others)} slide(s) have another scale; set tiles.mpp to resample all of them to one",
        others,
    )


def _bounds(sizes: np.ndarray, target: float) -> list[int]:
    """Return the index of the first slide of each shard, and the number of slides.

    Args:
        sizes: (slides,) int64, bytes of each slide.
        target: bytes of a shard. Some shards are larger or smaller, as a slide is not divided.
    """
    if not len(sizes):
        return [0, 0]
    shards = max(1, min(len(sizes), round(int(sizes.sum()) / target)))
    middles = np.cumsum(sizes) - sizes / 2
    numbers = (middles * shards // sizes.sum()).astype(np.int64)
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    return [*first.tolist(), len(sizes)]
