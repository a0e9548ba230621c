"""Each object of a slide appears once and whole after joining the detections of windows."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from gigatile.instances.detection import Detection
from gigatile.instances.seams import SeamJoiner, join_windows
from gigatile.instances.window_detections import SLIVER
from gigatile.instances.window_grid import MIN_OVERLAP, WindowGrid

KERNELS = [cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3)), np.ones((3, 3), np.uint8)]


class Nuclei:
    """Ellipses in the cells of a grid; some fill their cell, so that neighbours touch.

    Each window sees its own version of them: eroded, as they are, or dilated by a pixel.
    """

    def __init__(self, rows: int, columns: int, seed: int, cell: int = 24) -> None:
        self.cell, self.rows, self.columns = cell, rows, columns
        self.height, self.width = rows * cell, columns * cell
        random = np.random.default_rng(seed)
        shapes = [_ellipse(cell, random, full=number % 4 == 0) for number in range(200)]
        # For each shape: as it is, eroded, dilated; with a border of a pixel.
        self.versions = [
            [
                np.pad(s, 1),
                cv2.erode(np.pad(s, 1), KERNELS[0]),
                cv2.dilate(np.pad(s, 1), KERNELS[0]),
            ]
            for s in shapes
        ]
        self.shape = random.integers(len(shapes), size=(rows, columns))
        self.boxes = np.array([cv2.boundingRect(s) for s in shapes])[self.shape]  # x, y, w, h
        room = cell - self.boxes[..., 2:]
        self.corner = np.arange(rows)[:, None, None] * cell * np.array([0, 1])
        self.corner = self.corner + np.arange(columns)[None, :, None] * cell * np.array([1, 0])
        # The corner of the shape's image so that the ellipse stays in its cell.
        moved = (random.random(room.shape) * (room + 1)).astype(int)
        self.corner = self.corner + moved - self.boxes[..., :2]
        self.category = random.integers(3, size=(rows, columns))
        self.seed = seed

    def truth(self, row: int, column: int) -> tuple[np.ndarray, int, int]:
        """Return the mask of a nucleus and its first row and column."""
        x, y = self.corner[row, column]
        return self.versions[self.shape[row, column]][0], int(y) - 1, int(x) - 1

    def detections(
        self, window: int, box: tuple[int, int, int, int], perturbed: bool = True
    ) -> list[Detection]:
        """Return what a window sees; the scores are random.

        Masks are eroded or dilated, or moved by a pixel; some that a border cuts end before it.
        """
        y1, x1, y2, x2 = box
        random = np.random.default_rng([self.seed, window])
        detections = []
        first_row, first_column = max(0, y1 // self.cell - 1), max(0, x1 // self.cell - 1)
        for row in range(first_row, min(self.rows, y2 // self.cell + 2)):
            for column in range(first_column, min(self.columns, x2 // self.cell + 2)):
                mask, top, left = self.truth(row, column)
                numbers = random.integers([4, 2, 2, 2, 2], endpoint=False).tolist()
                if perturbed and numbers[0] < 3:
                    mask = self.versions[self.shape[row, column]][numbers[0]]
                elif perturbed:
                    top, left = top + 2 * numbers[1] - 1, left + 2 * numbers[2] - 1
                # Where a border cuts the mask, it may miss the last pixel.
                missing = numbers[3:] if perturbed else (0, 0)
                limits = [y1 + missing[0] * (y1 > 0), x1 + missing[1] * (x1 > 0)]
                limits += [y2 - missing[0] * (y2 < self.height)]
                limits += [x2 - missing[1] * (x2 < self.width)]
                v, u = max(0, limits[0] - top), max(0, limits[1] - left)
                mask = mask[v : max(0, limits[2] - top), u : max(0, limits[3] - left)]
                if mask.any():
                    score = float(random.uniform(0.3, 1))
                    category = int(self.category[row, column])
                    detections.append(
                        Detection(mask > 0, top + v - y1, left + u - x1, category, score)
                    )
        return detections


def _ellipse(cell: int, random: np.random.Generator, full: bool) -> np.ndarray:
    if full:
        axes, angle = (cell // 2 - 1, cell // 2 - 1 - int(random.integers(4))), 0
    else:
        axes = (int(random.integers(5, cell // 2 - 1)), int(random.integers(4, 8)))
        angle = int(random.integers(180))
    image = np.zeros((cell, cell), np.uint8)
    return cv2.ellipse(image, (cell // 2, cell // 2), axes, angle, 0, 360, 1, -1)


def _count_errors(scene: Nuclei, joined: list[Detection]) -> dict[str, int]:
    """Return the number of nuclei with each kind of error, if there are any."""
    counts = np.zeros((scene.rows, scene.columns), int)
    errors: Counter[str] = Counter()
    for instance in joined:
        height, width = instance.mask.shape
        row = int((instance.top + height / 2) // scene.cell)
        column = int((instance.left + width / 2) // scene.cell)
        mask, top, left = scene.truth(row, column)
        truth = Detection(mask > 0, top, left, 0, 1)
        common = _common(instance, truth)
        area, true_area = np.count_nonzero(instance.mask), np.count_nonzero(mask)
        # An ellipse with axes of 10 and 8 pixels loses half of its area by erosion.
        if common > 0.75 * min(area, true_area) and 0.4 < area / true_area < 2.2:
            counts[row, column] += 1
            errors["wrong class"] += int(instance.category != scene.category[row, column])
        else:
            errors["no nucleus"] += 1
        errors["merged"] += max(height, width) > scene.cell + 3
        errors["cut"] += instance.cut
    errors["missing"] = int((counts == 0).sum())
    errors["twice"] = int((counts > 1).sum())
    return {name: count for name, count in errors.items() if count}


def _common(first: Detection, second: Detection) -> int:
    """Return the number of pixels that two instances share."""
    y1, x1 = max(first.top, second.top), max(first.left, second.left)
    return int(np.count_nonzero(_crop(first, y1, x1, second) & _crop(second, y1, x1, first)))


def _crop(instance: Detection, y1: int, x1: int, other: Detection) -> np.ndarray:
    y2, x2 = other.top + other.mask.shape[0], other.left + other.mask.shape[1]
    top, left = instance.top, instance.left
    mask = instance.mask[y1 - top : max(y1, y2) - top, x1 - left : max(x1, x2) - left]
    height = min(instance.top + instance.mask.shape[0], y2) - y1
    width = min(instance.left + instance.mask.shape[1], x2) - x1
    return mask[: max(0, height), : max(0, width)]


def _as_sets(instances: Iterable[Detection]) -> list[tuple]:
    """Return instances in a form that can be compared."""
    return [
        (*(i.top, i.left, *i.mask.shape, i.mask.tobytes(), i.category, i.score, i.cut),)
        for i in instances
    ]


@pytest.mark.parametrize(
    ("rows", "side", "overlap"), [(317, 512, 64), (200, 256, 40), (100, 320, 128), (100, 90, 45)]
)
def test_each_nucleus_of_a_slide_appears_once_and_whole(rows, side, overlap):
    scene = Nuclei(rows, rows, seed=side)
    grid = WindowGrid(scene.height, scene.width, side, overlap)
    joiner, joined, seconds, count, peak = SeamJoiner(grid), [], 0.0, 0, 0
    for window in range(len(grid)):
        detections = scene.detections(window, grid.box(window))
        started = time.process_time()
        joined += joiner.add(window, detections)
        seconds += time.process_time() - started
        count += len(detections)
        peak = max(peak, joiner.pending)
    joiner.finish()
    assert _count_errors(scene, joined) == {}
    assert len(joined) == rows * rows
    assert joiner.pending == 0
    print(f"{len(joined)} instances, {count / seconds:.0f} detections/s, at most {peak} pending")
    # Measured: 70,000 to 120,000.
    assert count / seconds > 10_000


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("side", "overlap"), [(96, 32), (64, 32), (128, 30), (333, 34)])
def test_seams_at_all_positions_in_nuclei(side, overlap, seed):
    scene = Nuclei(30, 23, seed)
    grid = WindowGrid(scene.height, scene.width, side, overlap)
    windows = ((window, scene.detections(window, grid.box(window))) for window in range(len(grid)))
    assert _count_errors(scene, list(join_windows(grid, windows))) == {}


def _perfect_detections(
    objects: list[Detection], box: tuple[int, int, int, int], split: bool
) -> list[Detection]:
    """Return what a perfect detector sees in a window.

    Args:
        objects: of the slide.
        box: of the window.
        split: whether it sees the unconnected parts of a cut object as different instances.
    """
    y1, x1, y2, x2 = box
    detections = []
    for item in objects:
        top, left = max(item.top, y1), max(item.left, x1)
        mask = item.mask[top - item.top : max(y2 - item.top, 0)]
        mask = mask[:, left - item.left : max(x2 - item.left, 0)]
        parts, number = ndimage.label(mask, np.ones((3, 3))) if split else (mask, int(mask.any()))
        for part in range(1, number + 1):
            detections.append(
                Detection(parts == part, top - y1, left - x1, item.category, item.score)
            )
    return detections


def _objects_of(labels: np.ndarray) -> list[Detection]:
    """Return the connected objects of a label image, sorted by position."""
    objects = []
    for label in np.unique(labels[labels > 0]).tolist():
        parts, _ = ndimage.label(labels == label, np.ones((3, 3)))
        for number, (rows, columns) in enumerate(ndimage.find_objects(parts), 1):
            mask = parts[rows, columns] == number
            objects.append(Detection(mask, rows.start, columns.start, label % 3, 1 / (1 + label)))
    return sorted(objects, key=lambda item: (item.top, item.left, *item.mask.shape))


SHAPES = st.tuples(
    st.sampled_from(["box", "ellipse", "line"]),
    st.tuples(st.integers(0, 149), st.integers(0, 149)),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.sampled_from([-1, 1, 3]),
)


def _paint(height: int, width: int, shapes: list[tuple]) -> np.ndarray:
    """Return a label image with boxes, ellipses and lines; later ones cover earlier ones."""
    labels = np.zeros((height, width), np.uint8)
    for label, (kind, (y, x), (b, a), thickness) in enumerate(shapes, 1):
        match kind:
            case "box":
                cv2.rectangle(labels, (x, y), (x + a, y + b), label, thickness)
            case "ellipse":
                cv2.ellipse(labels, (x, y), (a, b), 30 * label, 0, 360, label, thickness)
            case "line":
                cv2.line(labels, (x, y), (2 * a, 2 * b), label, abs(thickness))
    return labels


label_images = st.builds(
    _paint, st.integers(25, 150), st.integers(25, 150), st.lists(SHAPES, min_size=1, max_size=9)
)


@given(label_images, st.integers(MIN_OVERLAP, 40), st.integers(0, 20), st.booleans())
@settings(max_examples=400)
def test_disjoint_objects_of_any_shape_and_size_are_exact(labels, overlap, more, split):
    objects = _objects_of(labels)
    grid = WindowGrid(*labels.shape, 2 * overlap + more, overlap)
    windows = [
        (window, _perfect_detections(objects, grid.box(window), split))
        for window in range(len(grid))
    ]
    joined = sorted(join_windows(grid, windows), key=lambda i: (i.top, i.left, *i.mask.shape))
    # Objects with equal boxes are in any order.
    joined_as_sets = [(*row[:5], row[5]) for row in _as_sets(joined)]
    assert sorted(joined_as_sets) == sorted((*row[:5], row[5]) for row in _as_sets(objects))


@given(label_images, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_the_order_of_windows_and_detections_does_not_matter(labels, random):
    objects = _objects_of(labels)
    grid = WindowGrid(*labels.shape, 48, 20)
    windows = []
    for window in range(len(grid)):
        detections = _perfect_detections(objects, grid.box(window), True)
        # Different masks in each window: the result depends on which of them are chosen.
        noise = np.random.default_rng(window)
        windows.append(
            (
                window,
                [
                    Detection(
                        d.mask & (noise.random(d.mask.shape) < 0.95),
                        *(d.top, d.left, d.category, float(noise.random())),
                    )
                    for d in detections
                ],
            )
        )
    expected = _as_sets(join_windows(grid, windows))
    shuffled = [(window, random.sample(some, len(some))) for window, some in windows]
    random.shuffle(shuffled)
    assert _as_sets(join_windows(grid, shuffled)) == expected


def _joined(grid: WindowGrid, detections: dict[int, list[Detection] | None]) -> list[Detection]:
    """Join detections in pixels of the slide; None: the window was not processed."""
    windows = []
    for window in range(len(grid)):
        y1, x1, _, _ = grid.box(window)
        some = detections.get(window, [])
        if some is not None:
            some = [replace(d, top=d.top - y1, left=d.left - x1) for d in some]
        windows.append((window, some))
    return list(join_windows(grid, windows))


def _box(y1: int, x1: int, y2: int, x2: int, category: int = 0, score: float = 0.5) -> Detection:
    return Detection(np.ones((y2 - y1, x2 - x1), bool), y1, x1, category, score)


def _boxes(instances: Iterable[Detection]) -> list[tuple[int, int, int, int]]:
    return [(i.top, i.left, i.top + i.mask.shape[0], i.left + i.mask.shape[1]) for i in instances]


# Two windows: columns 0 to 100 and 60 to 160. The seam is at column 80.
PAIR = WindowGrid(100, 160, 100, 40)


def test_the_window_with_the_centre_in_its_core_decides():
    left, right = _box(10, 60, 30, 78, score=0.3), _box(10, 62, 30, 78, score=0.9)
    assert _boxes(_joined(PAIR, {0: [left], 1: [right]})) == _boxes([left])
    left, right = _box(10, 80, 30, 98, score=0.9), _box(10, 82, 30, 98, score=0.3)
    assert _boxes(_joined(PAIR, {0: [left], 1: [right]})) == [(10, 82, 30, 98)]


def test_the_higher_score_decides_if_both_centres_are_in_the_cores():
    # Both windows see their half of it a bit larger.
    left, right = _box(10, 69, 30, 90, score=0.3), _box(10, 70, 30, 91, score=0.9)
    assert _boxes(_joined(PAIR, {0: [left], 1: [right]})) == [(10, 70, 30, 91)]
    left = replace(left, score=0.95)
    assert _boxes(_joined(PAIR, {0: [left], 1: [right]})) == [(10, 69, 30, 90)]


def test_the_window_with_the_centre_in_its_core_decides_alone():
    left, right = _box(10, 64, 30, 75), _box(10, 70, 30, 92)
    for item, owner, other in ((left, 0, 1), (right, 1, 0)):
        assert _boxes(_joined(PAIR, {owner: [item]})) == _boxes([item])
        assert _joined(PAIR, {other: [item]}) == []
        # A window that was not processed decides nothing.
        assert _boxes(_joined(PAIR, {owner: None, other: [item]})) == _boxes([item])


def test_each_window_sees_the_centre_in_the_core_of_the_other():
    left, right = _box(10, 71, 30, 91), _box(10, 69, 30, 89)
    assert len(_joined(PAIR, {0: [left], 1: [right]})) == 1


def test_the_deciding_window_cuts_an_object_that_the_other_one_shows_whole():
    # Columns 62 to 118 with the centre at 70: the mask is one row, with a bump at the left.
    mask = np.zeros((60, 56), bool)
    mask[30, :] = mask[:, 5:12] = True
    whole = Detection(mask, 5, 62, 0, 0.6)
    cut = Detection(mask[:, :38], 5, 62, 0, 0.9)
    (joined,) = _joined(PAIR, {0: [cut], 1: [whole]})
    assert not joined.cut and joined.mask.shape == mask.shape


def test_a_fragment_without_a_match_is_kept_unless_another_window_decides():
    fragment = _box(10, 60, 30, 60 + SLIVER + 1)
    assert _joined(PAIR, {1: [fragment]}) == []
    (joined,) = _joined(PAIR, {0: None, 1: [fragment]})
    assert joined.cut
    assert _joined(PAIR, {0: None, 1: [_box(10, 60, 30, 60 + SLIVER)]}) == []
    # Of a large object.
    (joined,) = _joined(PAIR, {1: [_box(10, 60, 30, 110)]})
    assert joined.cut
    # The edge of the slide cuts nothing.
    (thin,) = _joined(PAIR, {0: [_box(10, 0, 30, 2)]})
    assert not thin.cut


def test_a_fragment_that_overlaps_another_object_a_bit_is_kept():
    # The masks of neighbours overlap by a few rows.
    whole, fragment = _box(10, 67, 30, 90), _box(26, 60, 60, 104)
    joined = _joined(PAIR, {0: [whole], 1: [fragment]})
    assert sorted(_boxes(joined)) == sorted(_boxes([whole, fragment]))


def test_an_object_in_another_remains():
    for category in (0, 1):
        cell, nucleus = _box(10, 66, 50, 97), _box(20, 74, 34, 90, category)
        detections = {0: [cell, nucleus], 1: [replace(cell, score=0.9), nucleus]}
        assert sorted(_boxes(_joined(PAIR, detections))) == sorted(_boxes([cell, nucleus]))
        # Detections of the same window are never compared.
        alone = _joined(PAIR, {1: [cell, nucleus]})
        assert sorted(_boxes(alone)) == sorted(_boxes([cell, nucleus]))
        # Also if a window misses the outer one, and its nucleus is the best detection.
        detections[0] = [replace(nucleus, score=0.99)]
        assert sorted(_boxes(_joined(PAIR, detections))) == sorted(_boxes([cell, nucleus]))


def test_a_window_that_splits_an_object_does_not_add_halves():
    whole, upper, lower = _box(10, 64, 40, 94), _box(10, 64, 26, 94), _box(26, 64, 40, 94)
    for score in (0.4, 0.6):
        boxes = _boxes(_joined(PAIR, {0: [replace(whole, score=score)], 1: [upper, lower]}))
        assert boxes in (_boxes([whole]), _boxes([upper, lower]))


def test_a_long_object_is_the_union_of_its_parts():
    left, right = _box(10, 20, 30, 100, 1, 0.8), _box(11, 60, 31, 150, 2, 0.7)
    right.mask[5:7, 5:9] = False  # in the area that both windows show
    left.mask[2, 75] = False
    (joined,) = _joined(PAIR, {0: [left], 1: [right]})
    assert _boxes([joined]) == [(10, 20, 31, 150)]
    # Class and score are those of the larger part.
    assert (joined.category, joined.score, joined.cut) == (2, 0.7, False)
    expected = np.zeros((21, 130), bool)
    expected[:20, :80] = expected[1:, 40:] = True
    assert (joined.mask == expected).all()


def test_empty_masks_are_ignored_and_others_cropped():
    mask = np.zeros((20, 30), bool)
    empty = [Detection(mask, 5, 5, 0, 1.0), Detection(mask[:0], 5, 5, 0, 1.0)]
    assert _joined(PAIR, {0: empty}) == []
    cropped = mask.copy()
    cropped[3:5, 7:11] = True
    assert _boxes(_joined(PAIR, {0: [Detection(cropped, 5, 5, 0, 1.0)]})) == [(8, 12, 10, 16)]


def test_instances_of_a_row_are_in_order_of_position():
    left, right = _box(10, 20, 30, 100), _box(10, 60, 30, 150)
    others = [_box(5, 10, 9, 14), _box(40, 70, 50, 80), _box(40, 10, 50, 20)]
    boxes = _boxes(_joined(PAIR, {0: [left, *others], 1: [right]}))
    assert boxes == sorted(boxes)
    assert len(boxes) == 4


@pytest.mark.parametrize("seed", range(4))
def test_large_objects_that_touch_are_joined_but_not_merged(seed):
    # Ellipses of up to 150 pixels, in windows of 96, 64 and 120.
    scene = Nuclei(7, 6, seed, cell=150)
    for side, overlap in ((96, 28), (64, 32), (120, 40)):
        grid = WindowGrid(scene.height, scene.width, side, overlap)
        windows = [(w, scene.detections(w, grid.box(w))) for w in range(len(grid))]
        assert _count_errors(scene, list(join_windows(grid, windows))) == {}


@pytest.mark.parametrize("seed", range(3))
def test_places_that_several_windows_show_do_not_have_more_nuclei(seed):
    """Each window misses 40 % of the nuclei, and a nucleus counts if one certain window has it."""
    scene, random = Nuclei(60, 60, seed), np.random.default_rng(seed)
    grid = WindowGrid(scene.height, scene.width, 128, 40)
    windows, seen = [], np.zeros((len(grid), scene.rows, scene.columns), bool)
    for window in range(len(grid)):
        y1, x1, _, _ = grid.box(window)
        detections = [
            d for d in scene.detections(window, grid.box(window)) if random.random() < 0.6
        ]
        windows.append((window, detections))
        for item in detections:
            row, column = (
                (corner + side / 2) // scene.cell
                for corner, side in zip(
                    (y1 + item.top, x1 + item.left), item.mask.shape, strict=True
                )
            )
            seen[window, int(row), int(column)] = True
    joined = list(join_windows(grid, windows))
    errors = _count_errors(scene, joined)
    # None is cut, as the nuclei are smaller than the overlap.
    assert set(errors) == {"missing"}
    instances = np.zeros((scene.rows, scene.columns), bool)
    for item in joined:
        row, column = (int(v) for v in _twice_centre_of(item) // (2 * scene.cell))
        instances[row, column] = True
    centres = scene.corner[..., ::-1] + scene.boxes[..., 1::-1]
    twice = 2 * centres + scene.boxes[..., :1:-1]
    owners = grid.owners(twice.reshape(-1, 2)).reshape(scene.rows, scene.columns)
    rows, columns = np.indices(owners.shape)
    # Masks differ by a pixel, so two windows may both have the centre in their cores, or neither.
    near = [grid.owners((twice + 4 * np.array(s)).reshape(-1, 2)) for s in ((1, 1), (-1, -1))]
    clear = np.logical_and(*(owner.reshape(owners.shape) == owners for owner in near))
    assert clear.mean() > 0.8
    assert (instances == seen[owners, rows, columns])[clear].all()


def _twice_centre_of(instance: Detection) -> np.ndarray:
    return 2 * np.array([instance.top, instance.left]) + instance.mask.shape


def test_memory_does_not_grow_with_the_height_of_the_slide():
    peaks = []
    for rows in (40, 160):
        scene = Nuclei(rows, 40, seed=3)
        grid = WindowGrid(scene.height, scene.width, 240, 60)
        joiner, peak, in_row = SeamJoiner(grid), 0, Counter()
        for window in range(len(grid)):
            detections = scene.detections(window, grid.box(window))
            in_row[window // len(grid.columns)] += len(detections)
            joiner.add(window, detections)
            peak = max(peak, joiner.pending)
        peaks.append(peak)
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 2 * max(in_row.values())


def test_instances_are_returned_as_soon_as_their_row_is_complete():
    grid = WindowGrid(280, 160, 100, 40)
    assert [grid.box(window) for window in range(4)] == [
        *((0, 0, 100, 100), (0, 60, 100, 160)),
        *((60, 0, 160, 100), (60, 60, 160, 160)),
    ]
    joiner = SeamJoiner(grid)
    above, across = _box(10, 10, 60, 30), _box(40, 40, 61, 55)
    assert joiner.add(1, []) == []
    assert _boxes(joiner.add(0, [across, above])) == _boxes([above])
    assert joiner.pending == 1
    assert joiner.add(2, []) == []
    assert _boxes(joiner.add(3, [])) == _boxes([across])
    assert joiner.pending == 0
    with pytest.raises(ValueError, match="4 windows were not added"):
        joiner.finish()


def test_a_pending_mask_does_not_keep_the_window_in_memory():
    window = np.zeros((100, 100), bool)
    window[50:70, 20:30] = True
    joiner = SeamJoiner(WindowGrid(280, 100, 100, 40))
    joiner.add(0, [Detection(window, 0, 0, 0, 1.0)])
    assert joiner.pending == 1
    (mask,) = joiner._pending.masks
    assert mask.shape == (20, 10)
    assert mask.base is None


def test_missing_windows_and_wrong_calls_are_refused():
    with pytest.raises(ValueError, match="1 windows were not added"):
        list(join_windows(PAIR, [(1, [])]))
    with pytest.raises(ValueError, match="must overlap by 20 to 50 pixels, not 19"):
        WindowGrid(1000, 1000, 100, 19)
    with pytest.raises(ValueError, match="not 51"):
        WindowGrid(1000, 1000, 100, 51)
    joiner = SeamJoiner(PAIR)
    joiner.add(0, [])
    for window in (0, 2, -1):
        with pytest.raises(ValueError, match="was added before or is not"):
            joiner.add(window, [])
    with pytest.raises(ValueError, match="leaves its window"):
        joiner.add(1, [_box(0, 90, 10, 101)])


@given(st.integers(1, 400), st.integers(1, 400), st.integers(40, 90), st.data())
@settings(max_examples=50)
def test_windows_cover_the_slide_and_cores_do_so_once(height, width, side, data):
    overlap = data.draw(st.integers(MIN_OVERLAP, side // 2))
    grid = WindowGrid(height, width, side, overlap)
    cover = np.zeros((height, width), int)
    pixels = 2 * np.indices((height, width)).reshape(2, -1).T + 1
    owners = grid.owners(pixels).reshape(height, width)
    for window in range(len(grid)):
        y1, x1, y2, x2 = grid.box(window)
        assert (y2 - y1, x2 - x1) == (min(side, height), min(side, width))
        cover[y1:y2, x1:x2] += 1
        # A core has at least half an overlap to the borders of its window inside the slide.
        rows, columns = np.nonzero(owners == window)
        for places, low, high, end in ((rows, y1, y2, height), (columns, x1, x2, width)):
            assert low == 0 or places.min() + 1 > low + overlap // 2 - 1
            assert high == end or places.max() < high - overlap // 2 + 1
    for window, (y1, x1, y2, x2) in enumerate(grid.exclusive_boxes.clip(0, 400).tolist()):
        exclusive = np.zeros_like(cover)
        exclusive[y1:y2, x1:x2] = 1
        u1, v1, u2, v2 = grid.box(window)
        inside = np.zeros_like(cover)
        inside[u1:u2, v1:v2] = cover[u1:u2, v1:v2] == 1
        assert (exclusive == inside).all()
