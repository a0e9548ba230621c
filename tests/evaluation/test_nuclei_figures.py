"""AJI, panoptic quality and F1 equal the published formulas, and all intervals are over patients.

The references compare label images with plain loops.
"""

import json
import time
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask
from random_instances import annotation, detection
from scipy import ndimage

from gigatile.evaluation.coco_input import read_coco
from gigatile.evaluation.instances import InstanceCounts, Ratio, aji, count_instances, ratios
from gigatile.evaluation.intervals import Weights, draw_mean
from gigatile.settings.evaluate import EvaluationSettings

# pycocotools 2.0.11 has no code for the keyword copy of NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SETTINGS = EvaluationSettings()
SEEDS = st.integers(0, 2**32 - 1)
FIGURES = ("pq", "f1", "sq", "precision", "recall")


def numbers_of(labels):
    return [int(number) for number in np.unique(labels) if number]


def reference_aji(truth, predicted):
    """Return intersection and union of AJI: Kumar et al. 2017, algorithm 1."""
    intersection = union = 0
    used = set()
    for i in numbers_of(truth):
        best = None
        for j in numbers_of(predicted):
            shared = int(((truth == i) & (predicted == j)).sum())
            either = int(((truth == i) | (predicted == j)).sum())
            # HoVer-Net's IoU; equal ones are decided by the first.
            if shared and (best is None or shared / (either + 1e-6) > best[0]):
                best = shared / (either + 1e-6), shared, either, j
        if best is None:
            union += int((truth == i).sum())
        else:
            intersection, union = intersection + best[1], union + best[2]
            used.add(best[3])
    for j in numbers_of(predicted):
        if j not in used:
            union += int((predicted == j).sum())
    return intersection, union


def reference_pairs(truth, predicted):
    """Return true and false positives, false negatives and the IoUs: Kirillov et al. 2019."""
    ious = []
    for i in numbers_of(truth):
        for j in numbers_of(predicted):
            shared = ((truth == i) & (predicted == j)).sum()
            iou = shared / ((truth == i) | (predicted == j)).sum()
            if iou > 0.5:
                ious.append(float(iou))
    matched = len(ious)
    return (
        matched,
        len(numbers_of(predicted)) - matched,
        len(numbers_of(truth)) - matched,
        ious,
    )


def cohort_of_labels(images, categories=1):
    """Return truth and detections of label images.

    Args:
        images: for each image two label images and the categories of their numbers.
        categories: number of categories.
    """
    truth = {"images": [], "annotations": [], "categories": []}
    truth["categories"] = [{"id": k + 1, "name": f"c{k}"} for k in range(categories)]
    results = []
    for number, (labels, classes, predicted, predicted_classes) in enumerate(images, 1):
        height, width = labels.shape
        truth["images"].append({"id": number, "height": height, "width": width})
        for i in numbers_of(labels):
            entry = annotation(len(truth["annotations"]), number, classes[i] + 1, labels == i)
            truth["annotations"].append(entry)
        results += [
            detection(number, predicted_classes[j] + 1, predicted == j, 0.9)
            for j in numbers_of(predicted)
        ]
    return truth, results


def random_labels(random, size, count):
    """Return a label image with some blobs that touch each other."""
    points = random.integers(0, size, (count, 2))
    labels = np.zeros(size, np.int32)
    for number, (row, column) in enumerate(points, 1):
        height, width = random.integers(1, 8, 2)
        labels[max(row - height, 0) : row + height, max(column - width, 0) : column + width] = (
            number
        )
    return labels


def random_image(random, categories):
    """Return a label image, a changed copy, and the categories of their numbers."""
    labels = random_labels(random, (22, 18), int(random.integers(0, 7)))
    predicted = np.roll(labels, random.integers(-2, 3, 2), (0, 1))
    changed = random_labels(random, (22, 18), int(random.integers(0, 4)))
    predicted = np.where(changed > 0, changed + 10, predicted)
    if random.random() < 0.15:
        predicted[:] = 0
    classes = random.integers(0, categories, 20)
    wrong = random.random(20) < 0.2
    return labels, classes, predicted, np.where(wrong, (classes + 1) % categories, classes)


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 3))
def test_figures_equal_the_formulas(seed, categories):
    random = np.random.default_rng(seed)
    images = [random_image(random, categories) for _ in range(4)]
    counts, predictions = count_instances(read_coco(*cohort_of_labels(images, categories)))
    expected = np.array([reference_aji(labels, predicted) for labels, _, predicted, _ in images])
    assert np.array_equal(counts.intersection, expected[:, 0])
    assert np.array_equal(counts.union, expected[:, 1])
    assert predictions.tolist() == [len(numbers_of(predicted)) for _, _, predicted, _ in images]
    total = expected.sum(axis=0)
    assert aji(counts).value == pytest.approx(
        total[0] / total[1] if total[1] else np.nan, nan_ok=True
    )
    for category in range(categories):
        pairs = []
        for labels, classes, predicted, predicted_classes in images:
            own = np.where(classes[labels] == category, labels, 0)
            predicted_own = np.where(predicted_classes[predicted] == category, predicted, 0)
            pairs.append(reference_pairs(own, predicted_own))
        matched, false, missed = (sum(p[n] for p in pairs) for n in range(3))
        ious = [iou for p in pairs for iou in p[3]]
        for name, position in (("matched", 0), ("false", 1), ("missed", 2)):
            assert getattr(counts, name)[:, category].tolist() == [p[position] for p in pairs]
        figures = {name: ratio.value for name, ratio in ratios(counts, category).items()}
        both = matched + false / 2 + missed / 2
        sq = np.mean(ious) if ious else np.nan
        values = {
            "f1": matched / both if both else np.nan,
            "sq": sq,
            "pq": (matched / both * sq if ious else 0) if both else np.nan,
            "precision": matched / (matched + false) if matched + false else np.nan,
            "recall": matched / (matched + missed) if matched + missed else np.nan,
        }
        assert figures == pytest.approx(values, nan_ok=True)


def test_figures_of_real_nuclei_equal_the_formulas(shared_data):
    """Outlines of nuclei against eroded and shifted ones, 6 images."""
    truth = json.loads((shared_data / "nuclei/annotations.json").read_text())
    truth["images"] = truth["images"][::38]
    kept = {image["id"] for image in truth["images"]}
    truth["annotations"] = [a for a in truth["annotations"] if a["image_id"] in kept]
    random, results, images = np.random.default_rng(2), [], []
    data = read_coco(truth, [])
    for number, image in enumerate(data.images, 1):
        labels = np.zeros(data.sizes[number - 1], np.int32)
        for entry in data.annotations:
            if entry["image_id"] == number:
                labels[coco_mask.decode(entry["segmentation"]) > 0] = entry["id"]
        smaller = labels * ndimage.binary_erosion(labels > 0, iterations=int(random.integers(1, 3)))
        predicted = np.roll(smaller, random.integers(-1, 2, 2), (0, 1))
        predicted[np.isin(predicted, random.choice(numbers_of(labels), 2))] = 0
        images.append((labels, predicted))
        results += [detection(image, 1, predicted == j, 0.7) for j in numbers_of(predicted)]
    counts, _ = count_instances(read_coco(truth, results))
    for number, (labels, predicted) in enumerate(images):
        expected = reference_aji(labels, predicted)
        assert (counts.intersection[number], counts.union[number]) == expected
        matched, false, missed, ious = reference_pairs(labels, predicted)
        assert counts.matched[number, 0] == matched and counts.false[number, 0] == false
        assert counts.missed[number, 0] == missed
        assert counts.iou[number, 0] == pytest.approx(sum(ious))
    assert 0.2 < ratios(counts, 0)["pq"].value < 0.9


def square(top, left, height=10, width=10, size=(40, 40)):
    mask = np.zeros(size, np.uint8)
    mask[top : top + height, left : left + width] = 1
    return mask


def image_of(annotations, size=(40, 40), categories=2):
    return {
        "images": [{"id": 1, "height": size[0], "width": size[1]}],
        "annotations": annotations,
        "categories": [{"id": k + 1, "name": f"c{k}"} for k in range(categories)],
    }


def count(annotations, results, **options):
    counts, predictions = count_instances(read_coco(image_of(annotations), results), **options)
    values = {field.name: getattr(counts, field.name)[0] for field in fields(InstanceCounts)}
    return {name: v.tolist() for name, v in values.items()} | {"predictions": int(predictions[0])}


def test_an_iou_of_exactly_one_half_is_no_match():
    truth = [annotation(1, 1, 1, square(0, 0))]
    half = count(truth, [detection(1, 1, square(0, 0, 10, 5), 1)])
    assert half["matched"] == [0, 0] and half["false"] == half["missed"] == [1, 0]
    assert (half["intersection"], half["union"]) == (50, 100)
    more = count(truth, [detection(1, 1, square(0, 0, 10, 5) | square(0, 5, 1, 1), 1)])
    assert more["matched"] == [1, 0] and more["false"] == more["missed"] == [0, 0]
    assert more["iou"] == [0.51, 0]


def test_a_prediction_can_be_the_partner_of_several_instances_in_aji():
    truth = [annotation(1, 1, 1, square(0, 0)), annotation(2, 1, 1, square(0, 10))]
    counts = count(truth, [detection(1, 1, square(0, 0, 10, 20), 1)])
    assert (counts["intersection"], counts["union"]) == (200, 400)
    alone = count(truth, [detection(1, 2, square(20, 20), 1)])
    assert (alone["intersection"], alone["union"]) == (0, 300)


def test_aji_prefers_the_larger_union_if_the_iou_is_the_same():
    """As HoVer-Net does by 1e-6 in the denominator."""
    truth = [annotation(1, 1, 1, square(0, 0, 1, 12))]
    small = detection(1, 1, square(0, 0, 1, 4), 0.9)  # 4 of 12
    large = detection(1, 1, square(0, 4, 1, 8) | square(2, 0, 1, 12), 0.8)  # 8 of 24
    for results in ([small, large], [large, small]):
        counts = count(truth, results)
        assert (counts["intersection"], counts["union"]) == (8, 24 + 4)


def test_categories_must_agree_for_panoptic_quality_but_not_for_aji():
    counts = count([annotation(1, 1, 1, square(0, 0))], [detection(1, 2, square(0, 0), 1)])
    assert counts["matched"] == [0, 0]
    assert counts["missed"] == [1, 0] and counts["false"] == [0, 1]
    assert counts["intersection"] == counts["union"] == 100


def test_a_pixel_belongs_to_the_detection_with_the_highest_score():
    truth = [annotation(1, 1, 1, square(0, 0)), annotation(2, 1, 1, square(0, 10, 10, 4))]
    better, worse = square(0, 0), square(0, 0, 10, 14)
    for order in (1, -1):
        results = [detection(1, 1, better, 0.9), detection(1, 1, worse, 0.6)][::order]
        counts = count(truth, results)
        assert counts["matched"] == [2, 0] and counts["iou"] == [2, 0]
    results = [detection(1, 1, better, 0.6), detection(1, 1, worse, 0.9)]
    counts = count(truth, results)
    # The hidden detection vanishes.
    assert counts["matched"] == [1, 0] and counts["false"] == [0, 0] and counts["missed"] == [1, 0]
    assert counts["iou"] == [pytest.approx(100 / 140), 0] and counts["predictions"] == 1
    # With the same score, the first one has the pixels.
    results = [detection(1, 1, better, 0.7), detection(1, 1, worse, 0.7)]
    assert count(truth, results)["matched"] == [2, 0]
    assert count(truth, results[::-1])["matched"] == [1, 0]


def test_a_pixel_of_the_truth_belongs_to_the_smallest_instance():
    large, small = square(0, 0, 20, 20), square(5, 5)
    truth = [annotation(1, 1, 1, large), annotation(2, 1, 1, small)]
    results = [detection(1, 1, large - small, 1), detection(1, 1, small, 1)]
    for order in (1, -1):
        counts = count(truth[::order], results)
        assert counts["matched"] == counts["iou"] == [2, 0]
        assert counts["intersection"] == counts["union"] == 400
    # The area that an annotation says does not decide.
    truth[0]["area"], truth[1]["area"] = 1, 1000
    assert count(truth, results)["matched"] == [2, 0]


def test_score_threshold():
    truth = [annotation(1, 1, 1, square(0, 0))]
    results = [detection(1, 1, square(0, 0), 0.5), detection(1, 1, square(20, 0), 0.499)]
    assert count(truth, results)["false"] == [0, 0]
    assert count(truth, results)["matched"] == [1, 0]
    assert count(truth, results, score_threshold=0.4)["false"] == [1, 0]
    assert count(truth, results, score_threshold=0.501)["missed"] == [1, 0]


def test_predictions_mostly_in_a_crowd_are_ignored():
    crowd = square(0, 20, 40, 20)
    truth = [annotation(1, 1, 1, square(0, 0)), annotation(2, 1, 1, crowd, crowd=True)]
    inside, half, more = square(5, 25), square(25, 15), square(25, 14, 10, 13)
    good = detection(1, 1, square(0, 0), 1)
    counts = count(truth, [good, detection(1, 1, inside, 1), detection(1, 1, half, 1)])
    assert counts["matched"] == [1, 0] and counts["false"] == [1, 0]
    assert counts["missed"] == [0, 0]
    assert (counts["intersection"], counts["union"]) == (100, 200)
    counts = count(truth, [good, detection(1, 1, more, 1)])
    assert counts["false"] == [0, 0] and counts["union"] == 100
    # Another category than the crowd's.
    counts = count(truth, [good, detection(1, 2, inside, 1)])
    assert counts["false"] == [0, 1] and counts["union"] == 100
    # A match counts in a crowd too.
    truth.append(annotation(3, 1, 1, inside))
    counts = count(truth, [good, detection(1, 1, inside, 1)])
    assert counts["matched"] == [2, 0] and counts["union"] == 200
    # Two crowds that overlap are not counted twice.
    truth = [annotation(n, 1, 1, crowd, crowd=True) for n in (1, 2)]
    assert count(truth, [detection(1, 1, half, 1)])["false"] == [1, 0]


def test_large_image_with_thousands_of_nuclei():
    side, count = 3000, 71
    random = np.random.default_rng(0)
    images, results = image_of([], (side, side), 1), []
    step = side // count
    for number in range(count**2):
        row, column = np.divmod(number, count)
        for shift, entries in ((0, images["annotations"]), (2, results)):
            top, left = step * row + shift + 4, step * column + 4
            # The code of a rectangle, without an array of the whole image.
            runs = [left * side + top, *[24, side - 24] * 23, 24]
            runs.append(side * side - sum(runs))
            code = {"size": [side, side], "counts": runs}
            entries.append({"id": number, "image_id": 1, "category_id": 1, "segmentation": code})
        results[-1]["score"] = 0.5 + random.random() / 2
    started = time.perf_counter()
    counts, predictions = count_instances(read_coco(images, results))
    assert time.perf_counter() - started < 20  # seconds; 1.5 on two cores
    assert predictions.tolist() == counts.matched[:, 0].tolist() == [count**2]
    assert ratios(counts, 0)["sq"].value == pytest.approx(22 / 26)
    assert aji(counts).value == pytest.approx(22 / 26)


@given(SEEDS)
@settings(max_examples=30)
def test_draws_of_a_ratio(seed):
    """Weighted sums, with an unseen patient of the largest denominator at either extreme."""
    random = np.random.default_rng(seed)
    denominator = random.integers(0, 5, 9).astype(float)
    denominator[0] = 1
    numerator = denominator * random.random(9)
    patients = random.integers(0, 4, 9)
    weights = Weights(patients, SETTINGS)
    patient_of = np.unique(patients, return_inverse=True)[1]
    most = max(denominator[patients == patient].sum() for patient in set(patients))
    for lowest in (0.0, 0.5):
        draws = Ratio(numerator, denominator, lowest).draw(weights, patient_of)
        for draw in (0, 77, 999):
            w, unseen = weights.cases[draw], weights.unseen[draw] * most
            total = (w * denominator).sum() + unseen
            worst = ((w * numerator).sum() + lowest * unseen) / total
            assert draws.worst[draw] == pytest.approx(worst)
            assert draws.best[draw] == pytest.approx(((w * numerator).sum() + unseen) / total)


def test_ratio_of_equal_images_is_the_mean_over_images():
    """With one image per patient and equal denominators, as `draw_mean`."""
    values = np.random.default_rng(1).random(12)
    weights = Weights(np.arange(12), SETTINGS)
    draws = Ratio(values * 7, np.full(12, 7.0)).draw(weights, np.arange(12))
    expected = draw_mean(values, weights, 0, 1)
    assert draws.worst == pytest.approx(expected.worst)
    assert draws.best == pytest.approx(expected.best)
