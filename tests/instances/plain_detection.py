"""What Mask R-CNN computes, written again with loops over numbers: slow, but easy to check."""

import math

import numpy as np


def overlap(first, second) -> float:
    """Return the intersection over union of two boxes."""
    height = min(first[2], second[2]) - max(first[0], second[0])
    width = min(first[3], second[3]) - max(first[1], second[1])
    shared = height * width if height > 0 and width > 0 else 0.0
    union = area(first) + area(second) - shared
    return shared / union if union > 0 else 0.0


def area(box) -> float:
    height, width = box[2] - box[0], box[3] - box[1]
    return height * width if height > 0 and width > 0 else 0.0


def overlaps(first, second) -> np.ndarray:
    rows = [[overlap(a, b) for b in second] for a in first]
    return np.array(rows, np.float64).reshape(len(first), len(second))


def encode(box, anchor, weights) -> list[float]:
    """Return the regression targets of R-CNN: appendix C of Girshick et al. 2014."""
    height, width = anchor[2] - anchor[0], anchor[3] - anchor[1]
    centre = (anchor[0] + anchor[2]) / 2, (anchor[1] + anchor[3]) / 2
    return [
        weights[0] * ((box[0] + box[2]) / 2 - centre[0]) / height,
        weights[1] * ((box[1] + box[3]) / 2 - centre[1]) / width,
        weights[2] * math.log((box[2] - box[0]) / height),
        weights[3] * math.log((box[3] - box[1]) / width),
    ]


def decode(deltas, anchor, weights) -> list[float]:
    """Return the box; a side grows by a factor of at most 1000 / 16, as in detectron2."""
    dy, dx, dh, dw = (delta / weight for delta, weight in zip(deltas, weights, strict=True))
    height, width = anchor[2] - anchor[0], anchor[3] - anchor[1]
    y = (anchor[0] + anchor[2]) / 2 + dy * height
    x = (anchor[1] + anchor[3]) / 2 + dx * width
    tall = height * min(math.exp(min(dh, 700)), 62.5)
    wide = width * min(math.exp(min(dw, 700)), 62.5)
    return [y - tall / 2, x - wide / 2, y + tall / 2, x + wide / 2]


def clip(box, height, width) -> list[float]:
    limits = (height, width, height, width)
    return [min(max(value, 0.0), limit) for value, limit in zip(box, limits, strict=True)]


def anchor_boxes(rows, columns, stride, size, ratios) -> list[list[float]]:
    """Return the anchors of a level, row by row."""
    boxes = []
    for row in range(rows):
        for column in range(columns):
            y, x = (row + 0.5) * stride, (column + 0.5) * stride
            for ratio in ratios:
                # height * width = size² and height / width = ratio
                height, width = size * math.sqrt(ratio), size / math.sqrt(ratio)
                boxes.append([y - height / 2, x - width / 2, y + height / 2, x + width / 2])
    return boxes


def cells_within(canvas, stride, size) -> list[bool]:
    """Return for the anchors of a square canvas whether their cell begins in an image."""
    starts = range(0, canvas, stride)
    return [
        row < size[0] and column < size[1] for row in starts for column in starts for _ in range(3)
    ]


def drop_outside(within, *values) -> list[list]:
    """Return the values of each level without those of anchors that are not in the image."""
    return [
        [np.asarray(level)[inside] for level, inside in zip(levels, within, strict=True)]
        for levels in values
    ]


def match(iou, exists, low, high, keep_best) -> list[int]:
    """Return the instance of each box, -1 for background, -2 for ignored: `Matcher`, detectron2."""
    instances = [number for number, real in enumerate(exists) if real]
    best_of = {number: max([row[number] for row in iou], default=0) for number in instances}
    matches = []
    for row in iou:
        best = max(instances, key=lambda number: row[number], default=None)
        result = -1 if best is None or row[best] < low else -2
        if best is not None and row[best] >= high:
            result = best
        if keep_best and any(row[n] == best_of[n] > 0 for n in instances):
            result = best
        matches.append(result)
    return matches


def sample(matches, random, count, share) -> tuple[list[int], list[int]]:
    """Return the sampled matched boxes and background boxes: those with the largest numbers."""
    order = sorted(range(len(matches)), key=lambda index: -random[index])
    matched = [index for index in order if matches[index] >= 0][: int(count * share)]
    background = [index for index in order if matches[index] == -1]
    return matched, background[: count - len(matched)]


def suppress(boxes, scores, groups, count, iou) -> list[int]:
    """Return the indices that non-maximum suppression keeps, best first."""
    kept = []
    for index in sorted(range(len(boxes)), key=lambda index: (-scores[index], index)):
        rivals = [other for other in kept if groups[other] == groups[index]]
        if all(overlap(boxes[other], boxes[index]) <= iou for other in rivals):
            kept.append(index)
    return kept[:count]


def propose(objectness, deltas, anchors, size, before, after, iou) -> list[list[float]]:
    """Return the proposals of an image: `find_top_rpn_proposals` of detectron2."""
    boxes, scores, groups = [], [], []
    for level, (logits, moves, level_anchors) in enumerate(
        zip(objectness, deltas, anchors, strict=True)
    ):
        order = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
        for index in order[:before]:
            box = clip(decode(moves[index], level_anchors[index], (1, 1, 1, 1)), *size)
            if area(box) > 0:
                boxes.append(box)
                scores.append(logits[index])
                groups.append(level)
    return [boxes[index] for index in suppress(boxes, scores, groups, after, iou)]


def level_of(box) -> int:
    """Return the level of a box before limits: equation 1 of Lin et al. 2017."""
    size = math.sqrt(max(box[2] - box[0], 0) * max(box[3] - box[1], 0))
    return math.floor(4 + math.log2(size / 224)) if size else -100


def bin_weights(box, scale, height, width, size) -> dict[tuple[int, int], list]:
    """Return for each bin its cells and their weights: [(row, column, weight), …].

    `bilinear_interpolate` and `RoIAlignForward` of detectron2's ROIAlign_cuda.cu, with
    aligned=True and sampling_ratio=2.
    """
    start_h, start_w, end_h, end_w = (value * scale - 0.5 for value in box)
    bin_h, bin_w = (end_h - start_h) / size, (end_w - start_w) / size
    bins = {}
    for ph in range(size):
        for pw in range(size):
            cells = bins[ph, pw] = []
            for iy in range(2):
                y = start_h + ph * bin_h + (iy + 0.5) * bin_h / 2
                for ix in range(2):
                    x = start_w + pw * bin_w + (ix + 0.5) * bin_w / 2
                    if y < -1.0 or y > height or x < -1.0 or x > width:
                        continue
                    rows, columns = _neighbours(y, height), _neighbours(x, width)
                    cells += [(r, c, a * b / 4) for r, a in rows for c, b in columns]
    return bins


def _neighbours(position, length) -> list[tuple[int, float]]:
    position = max(position, 0.0)
    low = int(position)
    if low >= length - 1:
        return [(length - 1, 1.0)]
    return [(low, 1 - (position - low)), (low + 1, position - low)]


def roi_align(levels, box, size, lowest=2) -> np.ndarray:
    """Pool a box from the feature maps (height, width, channels) of an image."""
    level = min(max(level_of(box), lowest), lowest + len(levels) - 1)
    feature = levels[level - lowest]
    pooled = np.zeros((size, size, feature.shape[2]))
    bins = bin_weights(box, 1 / 2**level, *feature.shape[:2], size)
    for (row, column), cells in bins.items():
        for y, x, weight in cells:
            pooled[row, column] += weight * feature[y, x]
    return pooled


def roi_align_gradient(levels, box, upstream, lowest=2) -> list[np.ndarray]:
    """Return the gradient of the feature maps for a gradient (size, size, channels)."""
    level = min(max(level_of(box), lowest), lowest + len(levels) - 1)
    gradients = [np.zeros(feature.shape) for feature in levels]
    shape = levels[level - lowest].shape[:2]
    for bin_, cells in bin_weights(box, 1 / 2**level, *shape, len(upstream)).items():
        for y, x, weight in cells:
            gradients[level - lowest][y, x] += weight * upstream[bin_]
    return gradients


def mask_target(mask, box, size) -> np.ndarray:
    """Return whether at least 2 of the 4 sample points of each bin are in a mask of an image."""
    target = np.zeros((size, size))
    height, width = (box[2] - box[0]) / size, (box[3] - box[1]) / size
    for row in range(size):
        for column in range(size):
            hits = 0
            for down in (0.25, 0.75):
                for across in (0.25, 0.75):
                    y = math.floor(box[0] + (row + down) * height)
                    x = math.floor(box[1] + (column + across) * width)
                    inside = 0 <= y < mask.shape[0] and 0 <= x < mask.shape[1]
                    hits += bool(inside and mask[y, x])
            target[row, column] = hits >= 2
    return target


def sigmoid_cross_entropy(logit, label) -> float:
    probability = 1 / (1 + math.exp(-logit))
    return -math.log(probability) if label else -math.log(1 - probability)


def cross_entropy(logits, label) -> float:
    shares = [math.exp(logit) for logit in logits]
    return -math.log(shares[label] / sum(shares))
