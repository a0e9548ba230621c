"""Join the detections of overlapping windows of a slide: each object appears once and whole.

An object near a seam is detected in up to four windows, whole in some and cut in others:

- A *fragment* is a detection that touches a border of its window inside the slide. It is dropped if
  another window detects the same object whole, or if it is thinner than `SLIVER`. An object of up
  to `overlap - 2 * BORDER` pixels a side is whole in at least one window.
- Whole detections of different windows that match are duplicates. The one with its centre in the
  core of its window (the window without half of each overlap) is kept; then the one with the higher
  score.
- The remaining fragments that match are parts of an object larger than the overlap: their union is
  one instance. A fragment without a match is marked as cut.
- The window whose core has the centre decides whether there is an object: what it does not detect
  is dropped. Otherwise, places that several windows show would have more objects than others, true
  and false ones, and a map of their density would show the windows. A window that was not processed
  decides nothing.

Two detections match by their pixels in the area that both windows show. There, both are complete,
even if they are fragments. So objects that touch don't match, though their boxes overlap.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy import sparse

from gigatile.instances.detection import Detection
from gigatile.instances.window_detections import WindowDetections, describe_detections
from gigatile.instances.window_grid import WindowGrid

# Detections match if their intersection over union is larger, or if they have the same class and
# the intersection is a larger share of the smaller one.
MIN_IOU, MIN_SHARE = 0.5, 0.5
# A fragment is part of a whole detection if this share of its pixels belongs to it; or less, if it
# covers `MIN_SHARE` of the whole one's pixels in its window.
MIN_PART, MIN_PART_IF_COVERING = 0.5, 0.25
# Side of the cells of the spatial grid in pixels.
_CELL = 32


class SeamJoiner:
    """Joins the detections of the windows of a slide, and returns instances when they are complete.

    A row of windows is joined when all its windows and those of the rows above are there. An
    instance is returned when no later row can change it. So only the detections of a row and those
    that extend into the next are kept in memory, and the result does not depend on the order in
    which windows are added, or on the number of processes. The instances that a row completes are
    in order from top to bottom.
    """

    def __init__(self, grid: WindowGrid) -> None:
        self.grid = grid
        self._waiting: dict[int, Sequence[Detection]] = {}
        self._processed = np.ones(len(grid), bool)
        self._row = 0
        self._pending = WindowDetections()
        # Pairs of pending detections that match, (n, 2), as indices.
        self._links = np.empty((0, 2), np.int64)

    @property
    def pending(self) -> int:
        """Return the number of detections in memory."""
        return len(self._pending) + sum(map(len, self._waiting.values()))

    def add(self, window: int, detections: Sequence[Detection] | None) -> list[Detection]:
        """Add all detections of a window; return the instances that are complete now.

        Args:
            window: its number, row by row.
            detections: in pixels of the window; empty masks are ignored. None: the window was not
                processed, for example as it has no tissue.

        Raises:
            ValueError: the window was added before, or a detection leaves it.
        """
        columns = len(self.grid.columns)
        if not self._row * columns <= window < len(self.grid) or window in self._waiting:
            raise ValueError(f"window {window} was added before or is not one of the grid")
        self._processed[window] = detections is not None
        self._waiting[window] = detections or ()
        complete: list[Detection] = []
        while self._row < len(self.grid.rows):
            windows = range(self._row * columns, (self._row + 1) * columns)
            if not all(number in self._waiting for number in windows):
                break
            self._row += 1
            complete += self._join([(number, self._waiting.pop(number)) for number in windows])
        return complete

    def finish(self) -> None:
        """Check that all windows were added.

        Raises:
            ValueError: windows are missing.
        """
        if self._row < len(self.grid.rows):
            missing = (len(self.grid.rows) - self._row) * len(self.grid.columns)
            raise ValueError(f"{missing - len(self._waiting)} windows were not added")

    def _join(self, row: Sequence[tuple[int, Sequence[Detection]]]) -> list[Detection]:
        """Join a row of windows with the pending detections; return the complete instances."""
        before = len(self._pending)
        self._pending += describe_detections(self.grid, row)
        detections = self._pending
        self._match(before)
        # A covered fragment does not connect others.
        self._links = self._links[~detections.covered[self._links].any(axis=1)]
        last = self._row == len(self.grid.rows)
        next_row = np.inf if last else self.grid.rows[self._row, 0]
        group = _connected(len(detections), self._links)
        # A group of detections that match is complete when no later row shows a part of it.
        extends = (detections.boxes[:, 2] > next_row) & ~detections.covered
        complete = ~np.isin(group, group[extends])
        links = self._links[complete[self._links[:, 0]]]
        chosen = complete & ~detections.covered
        chosen[_duplicates(detections, links)] = False
        owned = self._owned(group)
        parts = [part for part in _parts(detections, links, group) if len(part) > 1]
        if parts:
            chosen[np.concatenate(parts)] = False
        joined = _instances(detections[np.flatnonzero(chosen & owned)])
        joined += [_union(detections, part) for part in parts if owned[part[0]]]
        self._keep(~complete)
        return sorted(joined, key=_position)

    def _owned(self, group: np.ndarray) -> np.ndarray:
        """Return whether the window that decides about a detection has its object: (n,) bool.

        Args:
            group: the number of the group of each pending detection.
        """
        detections, count = self._pending, len(self.grid)
        owned = detections.supported | ~self._processed[detections.owners]
        owned |= np.isin(group * count + detections.owners, group * count + detections.windows)
        return np.isin(group, group[owned])

    def _keep(self, kept: np.ndarray) -> None:
        """Remove all pending detections but these, (n,) bool, and the links to them."""
        number = np.cumsum(kept) - 1
        self._links = number[self._links[kept[self._links].all(axis=1)]]
        self._pending = self._pending[np.flatnonzero(kept)]

    def _match(self, before: int) -> None:
        """Compare the detections from index `before` on with all others of other windows."""
        detections = self._pending
        candidates = np.flatnonzero(detections.shared & ~detections.covered)
        near = _overlapping(detections.boxes[candidates])
        first, second = candidates[near[:, 0]], candidates[near[:, 1]]
        compared = (detections.windows[first] != detections.windows[second]) & (
            np.maximum(first, second) >= before
        )
        first, second = first[compared], second[compared]
        alike = detections.cut[first] == detections.cut[second]
        links = self._matches(first[alike], second[alike])
        self._links = np.concatenate([self._links, links])
        first, second = first[~alike], second[~alike]
        is_cut = detections.cut[first]
        self._cover(np.where(is_cut, first, second), np.where(is_cut, second, first))

    def _matches(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the pairs of detections that match, (m, 2): both whole or both fragments."""
        detections = self._pending
        common = _intersections(detections, first, second)
        first, second, common = first[common > 0], second[common > 0], common[common > 0]
        areas = np.stack([self._areas_in(first, second), self._areas_in(second, first)], axis=1)
        iou = common / (areas.sum(axis=1) - common)
        share = common / areas.min(axis=1)
        close = iou > MIN_IOU
        same = detections.categories[first] == detections.categories[second]
        contained = ~close & same & (share > MIN_SHARE)
        # If the window of the larger one has another detection for the smaller one, then they are
        # two objects, of which one lies in the other.
        windows = detections.windows
        count = len(self.grid)
        keys = np.concatenate(
            [
                first[close] * count + windows[second[close]],
                second[close] * count + windows[first[close]],
            ]
        )
        first_is_smaller = areas[:, 0] < areas[:, 1]
        smaller = np.where(first_is_smaller, first, second)
        larger = np.where(first_is_smaller, second, first)
        contained &= ~np.isin(smaller * count + windows[larger], keys)
        return np.stack([first, second], axis=1)[close | contained]

    def _cover(self, fragments: np.ndarray, wholes: np.ndarray) -> None:
        """Mark the fragments that are part of whole detections; the arguments are pairs."""
        detections = self._pending
        common = _intersections(detections, fragments, wholes)
        fragments, wholes, common = fragments[common > 0], wholes[common > 0], common[common > 0]
        share = common / detections.areas[fragments]
        # A fragment may belong to two whole detections, if it shows too little to separate them.
        _, pair = np.unique(
            fragments * len(self.grid) + detections.windows[wholes], return_inverse=True
        )
        total = np.bincount(pair, share)[pair] if len(pair) else share
        covers = common > MIN_SHARE * self._areas_in(wholes, fragments)
        covers &= detections.categories[fragments] == detections.categories[wholes]
        covers &= share > MIN_PART_IF_COVERING
        is_part = (total > MIN_PART) | covers
        detections.covered[fragments[is_part]] = True
        # A neighbour of the object may touch the fragment, too.
        is_part &= share > MIN_PART_IF_COVERING
        is_part &= detections.owners[wholes] == detections.windows[fragments]
        detections.supported[wholes[is_part]] = True

    def _areas_in(self, detections: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the pixels of detections that the windows of others show: (n,)."""
        pending = self._pending
        boxes, limits = pending.boxes[detections], self.grid.boxes[pending.windows[others]]
        areas = pending.areas[detections].copy()
        cropped = (boxes[:, :2] < limits[:, :2]).any(axis=1)
        cropped |= (boxes[:, 2:] > limits[:, 2:]).any(axis=1)
        for index in np.flatnonzero(cropped).tolist():
            top, left = boxes[index, :2].tolist()
            y1, x1, y2, x2 = limits[index].tolist()
            mask = pending.masks[detections[index]]
            shown = mask[max(y1 - top, 0) : y2 - top, max(x1 - left, 0) : x2 - left]
            areas[index] = np.count_nonzero(shown)
        return areas


def join_windows(
    grid: WindowGrid, windows: Iterable[tuple[int, Sequence[Detection] | None]]
) -> Iterator[Detection]:
    """Yield the instances of a slide, each once; see `SeamJoiner`.

    Args:
        grid: the windows.
        windows: the number of each window and its detections; see `SeamJoiner.add`.

    Raises:
        ValueError: a window is missing or appears twice, or a detection leaves its window.
    """
    joiner = SeamJoiner(grid)
    for window, detections in windows:
        yield from joiner.add(window, detections)
    joiner.finish()


def _overlapping(boxes: np.ndarray) -> np.ndarray:
    """Return the pairs of boxes that overlap, each once: (m, 2) int64.

    Each box is entered in the cells of a grid that it touches, and pairs are formed in each cell.
    """
    if not len(boxes):
        return np.empty((0, 2), np.int64)
    low = boxes[:, :2] // _CELL
    cells = (boxes[:, 2:] - 1) // _CELL - low + 1
    counts = cells.prod(axis=1)
    index = np.repeat(np.arange(len(boxes)), counts)
    offset = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    y, x = np.divmod(offset, cells[index, 1])
    y, x = y + low[index, 0], x + low[index, 1]
    order = np.lexsort((index, x, y))
    index, y, x = index[order], y[order], x[order]
    is_first = np.ones(len(index), bool)
    is_first[1:] = (y[1:] != y[:-1]) | (x[1:] != x[:-1])
    starts = np.flatnonzero(is_first)
    ends = np.repeat(np.append(starts[1:], len(index)), np.diff(np.append(starts, len(index))))
    # Each entry forms pairs with the later entries of its cell.
    later = ends - np.arange(len(index)) - 1
    first = np.repeat(np.arange(len(index)), later)
    second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
    a, b = index[first], index[second]
    # Count a pair only in the first cell that both touch.
    once = (y[first] == np.maximum(low[a, 0], low[b, 0])) & (
        x[first] == np.maximum(low[a, 1], low[b, 1])
    )
    once &= (boxes[a, :2] < boxes[b, 2:]).all(axis=1)
    once &= (boxes[b, :2] < boxes[a, 2:]).all(axis=1)
    return np.stack([a[once], b[once]], axis=1)


def _intersections(
    detections: WindowDetections, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Return the number of pixels that pairs of detections share: (n,) int64."""
    boxes, other_boxes = detections.boxes[first], detections.boxes[second]
    masks, others = detections.masks[first], detections.masks[second]
    low = np.maximum(boxes[:, :2], other_boxes[:, :2])
    size = np.minimum(boxes[:, 2:], other_boxes[:, 2:]) - low
    starts = [low - corners[:, :2] for corners in (boxes, other_boxes)]
    slices = np.hstack([part for start in starts for part in (start, start + size)])
    counts = [
        np.count_nonzero(mask[y1:y2, x1:x2] & other[v1:v2, u1:u2])
        for mask, other, (y1, x1, y2, x2, v1, u1, v2, u2) in zip(
            masks, others, slices.tolist(), strict=True
        )
    ]
    return np.array(counts, np.int64)


def _connected(count: int, links: np.ndarray) -> np.ndarray:
    """Return the number of the group of each of `count` detections that `links` connect."""
    values = np.ones(len(links), bool)
    graph = sparse.coo_array((values, (links[:, 0], links[:, 1])), (count, count))
    return np.asarray(sparse.csgraph.connected_components(graph, directed=False)[1])


def _duplicates(detections: WindowDetections, links: np.ndarray) -> np.ndarray:
    """Return the whole detections that match a better one: indices (d,) int64."""
    links = links[~detections.cut[links[:, 0]]]
    neighbours: dict[int, list[int]] = {}
    for first, second in links.tolist():
        neighbours.setdefault(first, []).append(second)
        neighbours.setdefault(second, []).append(first)
    members = np.unique(links)
    some = detections[members]
    rank = np.empty(len(members), np.int64)
    rank[some.order()] = np.arange(len(members))
    best_first = np.lexsort((rank, -some.areas, -some.scores, some.owners != some.windows))
    removed: set[int] = set()
    for index in members[best_first].tolist():
        if index not in removed:
            removed.update(neighbours[index])
    return np.array(sorted(removed), np.int64)


def _parts(detections: WindowDetections, links: np.ndarray, group: np.ndarray) -> list[np.ndarray]:
    """Return the fragments of each object that is cut in every window, as indices."""
    members = np.unique(links[detections.cut[links[:, 0]]])
    members = members[np.argsort(group[members], kind="stable")]
    return np.split(members, np.flatnonzero(np.diff(group[members])) + 1) if len(members) else []


def _instances(detections: WindowDetections) -> list[Detection]:
    return [
        Detection(mask.view(bool), top, left, category, score, cut=cut)
        for mask, (top, left), category, score, cut in zip(
            detections.masks,
            detections.boxes[:, :2].tolist(),
            detections.categories.tolist(),
            detections.scores.tolist(),
            detections.cut.tolist(),
            strict=True,
        )
    ]


def _union(detections: WindowDetections, members: np.ndarray) -> Detection:
    """Return the union of fragments, with the class and score of the largest one."""
    some = detections[members]
    top, left = some.boxes[:, :2].min(axis=0).tolist()
    bottom, right = some.boxes[:, 2:].max(axis=0).tolist()
    mask = np.zeros((bottom - top, right - left), bool)
    for pixels, (y1, x1, y2, x2) in zip(some.masks, some.boxes.tolist(), strict=True):
        mask[y1 - top : y2 - top, x1 - left : x2 - left] |= pixels.view(bool)
    order = some.order()
    largest = order[np.argmax(some.areas[order])]
    category, score = int(some.categories[largest]), float(some.scores[largest])
    return Detection(mask, top, left, category, score)


def _position(instance: Detection) -> tuple[float, ...]:
    height, width = instance.mask.shape
    return (
        *(instance.top, instance.left, height, width),
        *(instance.category, -instance.score, int(np.count_nonzero(instance.mask))),
    )
