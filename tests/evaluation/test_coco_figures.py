"""COCO's figures equal those of pycocotools, also when images are weighted."""

import itertools
import json
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_instances import (
    SQUARE,
    annotation,
    detection,
    one_image,
    pycocotools_evaluation,
    random_cohort,
    shifted_copies,
)

from gigatile.evaluation import coco, coco_draws
from gigatile.evaluation.coco import (
    CocoFigures,
    average_precision,
    category_precision,
    coco_figures,
    match_detections,
    precision_curves,
)
from gigatile.evaluation.coco_draws import (
    CategoryMatches,
    Unseen,
    category_matches,
    draw_precision,
    draw_recall,
    weighted_precision,
)
from gigatile.evaluation.coco_input import read_coco
from gigatile.evaluation.intervals import Weights
from gigatile.settings.evaluate import EvaluationSettings

# pycocotools 2.0.11 has no code for the keyword copy of NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SETTINGS = EvaluationSettings()
SEEDS = st.integers(0, 2**32 - 1)
# Areas and limits of detections in pycocotools' arrays: all areas, the last limit.
ALL_LAST = (..., 0, 2)
AREAS = (coco.ALL_AREAS, coco.SMALL, coco.MEDIUM, coco.LARGE)
LIMITS = (coco.LIMIT_1, coco.LIMIT_10, coco.LAST_LIMIT)


def evaluate(truth, results, kind, max_detections=100):
    return match_detections(read_coco(truth, results), kind, max_detections)


def equal_to_pycocotools(truth, results, kind):
    expected = pycocotools_evaluation(truth, results, kind)
    evaluation = evaluate(truth, results, kind)
    for part in ("precision", "recall", "scores"):
        assert np.array_equal(evaluation.eval[part], expected.eval[part])
    for matches, plain in zip(evaluation.evalImgs, expected.evalImgs, strict=True):
        assert (matches is None) == (plain is None)
        for part in ("dtMatches", "gtMatches", "dtIgnore", "gtIgnore", "dtScores") if plain else ():
            assert np.array_equal(matches[part], plain[part])
    figures = [-1 if np.isnan(value) else value for value in astuple(coco_figures(evaluation))]
    assert figures == list(expected.stats)
    return evaluation, expected


@pytest.fixture(scope="module", params=["nuclei", "coco"])
def real(request, shared_data):
    truth = json.loads((shared_data / request.param / "annotations.json").read_text())
    if request.param == "nuclei":  # a part, as pycocotools is slow for dense images
        images = [image for image in truth["images"] if image["id"] % 5 == 0]
        kept = {image["id"] for image in images}
        truth["images"] = images
        truth["annotations"] = [a for a in truth["annotations"] if a["image_id"] in kept]
    for number, entry in enumerate(truth["annotations"], 1):
        entry["id"] = number  # as `read_coco` numbers them, to compare the matches
    return shifted_copies(truth, np.random.default_rng(3))


@pytest.mark.parametrize("kind", coco.KINDS)
def test_figures_of_real_instances_equal_pycocotools(real, kind):
    evaluation, _ = equal_to_pycocotools(*real, kind)
    assert 0.1 < coco_figures(evaluation).ap50 < 0.9


@settings(max_examples=25)
@given(SEEDS)
def test_figures_of_random_instances_equal_pycocotools(seed):
    truth, results = random_cohort(np.random.default_rng(seed))
    for kind in coco.KINDS if results else ():
        equal_to_pycocotools(truth, results, kind)


def test_names_of_the_figures_are_in_the_order_of_pycocotools():
    names = "ap ap50 ap75 ap_small ap_medium ap_large"
    names += " ar_1 ar_10 ar_max ar_small ar_medium ar_large"
    assert list(CocoFigures.__dataclass_fields__) == names.split()


def grid_of_instances(count):
    """Return an image with this many instances, all detected, the last with the best score."""
    truth = {"images": [{"id": 1, "height": 60, "width": 60}], "annotations": []}
    truth["categories"] = [{"id": 1, "name": "nucleus"}]
    results = []
    for number in range(count):
        mask = np.zeros((60, 60), np.uint8)
        row, column = np.divmod(number, 20)
        mask[3 * row : 3 * row + 2, 3 * column : 3 * column + 2] = 1
        truth["annotations"].append(annotation(number + 1, 1, 1, mask))
        results.append(detection(1, 1, mask, (number + 1) / count))
    return truth, results


def test_limit_of_detections():
    truth, results = grid_of_instances(150)
    for limit in (5, 10, 60, 100, 150, 500):
        figures = coco_figures(evaluate(truth, results, "segm", limit))
        # With precision 1 up to the recall, all recall points below it count.
        recall = min(limit, 150) / 150
        assert figures.ar_max == figures.ar_small == pytest.approx(recall)
        assert figures.ar_10 == pytest.approx(min(limit, 10) / 150)
        assert figures.ar_1 == pytest.approx(1 / 150)
        points = np.count_nonzero(np.linspace(0, 1, 101) <= recall)
        assert figures.ap == figures.ap50 == figures.ap_small == pytest.approx(points / 101)
    expected = pycocotools_evaluation(truth, results, "segm", 60)
    evaluation = evaluate(truth, results, "segm", 60)
    assert np.array_equal(evaluation.eval["precision"], expected.eval["precision"])
    assert average_precision(truth, results, "segm", 60)["ap"] == pytest.approx(41 / 101)


def test_detections_above_the_limit_do_not_count_with_weights_either():
    truth, results = grid_of_instances(150)
    mask = np.zeros((60, 60), np.uint8)
    mask[:9, :9] = 1
    truth["images"].append(truth["images"][0] | {"id": 2})
    truth["annotations"].append(annotation(151, 2, 1, mask))
    results.append(detection(2, 1, mask, 0.001))
    for limit in (60, 1000):
        assert_equals_accumulate(
            pycocotools_evaluation(truth, results, "segm", limit),
            evaluate(truth, results, "segm", limit),
        )


@pytest.mark.parametrize("kind", coco.KINDS)
def test_weights_of_1_equal_accumulate_on_real_instances(real, kind):
    expected = pycocotools_evaluation(*real, kind)
    assert_equals_accumulate(expected, evaluate(*real, kind))


@settings(max_examples=25)
@given(SEEDS, st.sampled_from([1, 3]))
def test_weights_of_1_equal_accumulate(seed, decimals):
    truth, results = random_cohort(np.random.default_rng(seed), decimals=decimals)
    for kind in coco.KINDS if results else ():
        assert_equals_accumulate(
            pycocotools_evaluation(truth, results, kind), evaluate(truth, results, kind)
        )


def assert_equals_accumulate(expected, evaluation):
    """Equal, not almost equal: at weights of 1 no arithmetic differs."""
    for area, limit in itertools.product(AREAS, LIMITS):
        precision = expected.eval["precision"][..., area, limit]
        recall = expected.eval["recall"][..., area, limit]
        for k, matches in enumerate(category_matches(evaluation, area, limit)):
            images = len(matches.instances)
            if not matches.instances.any():
                assert (precision[..., k] == -1).all() and (recall[..., k] == -1).all()
                continue
            weighted = weighted_precision(matches, np.ones((images, 2)))
            assert np.array_equal(weighted[0, ..., 0], precision[..., k])
            assert np.array_equal(weighted[0, ..., 1], precision[..., k])
            weights = Weights(np.arange(images), EvaluationSettings(resamples=1000))
            weights.cases, weights.unseen = np.ones((2, images)), np.zeros(2)
            draws = draw_recall(matches, weights, np.arange(images), 100)
            assert np.array_equal(draws.worst, draws.best)
            assert draws.worst == pytest.approx(recall[:, k].mean())


def repeated(truth, results, times):
    """Return a cohort in which each image appears as often as `times` says, with new ids.

    Args:
        truth, results: in COCO's formats.
        times: (images,) int, in the order of the ids.
    """
    images, annotations, detections = [], [], []
    for image, count in zip(sorted(truth["images"], key=lambda i: i["id"]), times, strict=True):
        for _ in range(count):
            number = len(images) + 1
            images.append(image | {"id": number})
            for old, new in ((truth["annotations"], annotations), (results, detections)):
                kept = [entry for entry in old if entry["image_id"] == image["id"]]
                new.extend(entry | {"image_id": number, "id": 0} for entry in kept)
    for number, entry in enumerate(annotations, 1):
        entry["id"] = number
    for entry in detections:
        del entry["id"]
    return truth | {"images": images, "annotations": annotations}, detections


@settings(max_examples=40)
@given(SEEDS, st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_whole_weights_equal_pycocotools_on_repeated_images(seed, times):
    """Scores differ: the order of equal scores in pycocotools depends on the ids."""
    truth, results = random_cohort(np.random.default_rng(seed), decimals=9)
    more_truth, more_results = repeated(truth, results, times)
    if not more_results:
        return
    for kind in coco.KINDS:
        expected = pycocotools_evaluation(more_truth, more_results, kind)
        precision = expected.eval["precision"][ALL_LAST]
        for k, matches in enumerate(category_matches(evaluate(truth, results, kind))):
            if not (matches.instances * times).any():
                continue
            weighted = weighted_precision(matches, np.array(times, np.float64)[:, None])
            assert np.array_equal(weighted[0, ..., 0], precision[..., k])


def plain_precision(matches, weights, threshold):
    """Compute precision at each recall with loops, from the definition."""
    instances = sum(w * n for w, n in zip(weights, matches.instances, strict=True))
    true = false = 0.0
    points = []
    for number, image in enumerate(matches.image_of):
        if matches.ignored[threshold, number]:
            continue
        if matches.matched[threshold, number]:
            true += weights[image]
        else:
            false += weights[image]
        points.append((true / instances, true / (true + false)))
    return [max((p for r, p in points if r >= recall - 1e-12), default=0.0) for recall in RECALLS]


RECALLS = np.arange(101) / 100


@given(SEEDS)
@settings(max_examples=20)
def test_fractional_weights_equal_the_definition(seed):
    random = np.random.default_rng(seed)
    truth, results = random_cohort(random, decimals=9)
    weights = random.exponential(size=(6, 3)) + 1e-3
    for matches in category_matches(evaluate(truth, results, "segm")):
        if not matches.instances.any():
            continue
        weighted = weighted_precision(matches, weights)
        assert weighted.shape == (1, 10, 101, 3)
        for threshold in (0, 4, 9):
            for draw in range(3):
                expected = plain_precision(matches, weights[:, draw], threshold)
                assert weighted[0, threshold, :, draw] == pytest.approx(expected, abs=1e-9)


def test_perfect_detections_have_precision_1_at_recall_1_with_any_weights():
    """Sums of the same weights in another order differ in their last digit."""
    random = np.random.default_rng(0)
    image_of = random.permutation(np.repeat(np.arange(40), 5))
    matched = np.ones((10, 200), bool)
    matches = CategoryMatches(image_of, matched, ~matched, np.full(40, 5))
    weights = random.exponential(size=(40, 500)) * 10.0 ** random.integers(-3, 9, 500)
    assert np.abs(weighted_precision(matches, weights) - 1).max() < 1e-12


@given(SEEDS)
@settings(max_examples=20)
def test_unseen_patient_equals_a_further_image(seed):
    random = np.random.default_rng(seed)
    truth, results = random_cohort(random, decimals=9, categories=(4,))
    matches = category_matches(evaluate(truth, results, "segm"))[0]
    weights = random.exponential(size=(6, 2)) + 1e-3
    added = random.exponential(size=2) + 1e-3
    if not matches.instances.any():
        return
    masks = [np.zeros((48, 40), np.uint8) for _ in range(3)]
    for number, mask in enumerate(masks):
        mask[:, 10 * number : 10 * number + 9] = 1
    corner = np.zeros((48, 40), np.uint8)
    corner[:4, 36:] = 1
    image = {"id": 99, "height": 48, "width": 40}
    instances = [annotation(1000 + n, 99, 4, mask) for n, mask in enumerate(masks)]
    perfect = [detection(99, 4, mask, 1.5) for mask in masks]
    empty = [detection(99, 4, corner, 1.5) for _ in masks]
    cases = (
        (Unseen(missed=3 * added), instances, []),
        (Unseen(detected=3 * added), instances, perfect),
        (Unseen(false=3 * added), [], empty),
        (Unseen(missed=3 * added, false=3 * added), instances, empty),
    )
    together = weighted_precision(matches, weights, [unseen for unseen, _, _ in cases])
    for precision, (_, more, detected) in zip(together, cases, strict=True):
        longer = truth | {
            "images": [*truth["images"], image],
            "annotations": [*truth["annotations"], *more],
        }
        (with_image,) = category_matches(evaluate(longer, [*results, *detected], "segm"))
        expected = weighted_precision(with_image, np.vstack([weights, added]))[0]
        assert precision == pytest.approx(expected, abs=1e-9)


def test_draws_do_not_depend_on_the_number_of_resamples_at_once(monkeypatch):
    truth, results = random_cohort(np.random.default_rng(5), images=12)
    matches = category_matches(evaluate(truth, results, "bbox"))[0]
    patient_of = np.arange(12) // 2
    weights = Weights(patient_of, SETTINGS)
    whole = draw_precision(matches, weights, patient_of)
    monkeypatch.setattr(coco_draws, "_MAX_VALUES", 7 * 2020)
    parts = draw_precision(matches, weights, patient_of)
    for name in ("ap", "ap50", "ap75"):
        for end in ("worst", "best"):
            first, second = (getattr(getattr(d, name), end) for d in (whole, parts))
            assert first.shape == (1000,)
            assert np.array_equal(first, second)


def test_draws_surround_the_figure_of_their_weights():
    truth, results = random_cohort(np.random.default_rng(6), images=30, categories=(1,))
    evaluation = evaluate(truth, results, "segm")
    (matches,) = category_matches(evaluation)
    weights = Weights(np.arange(30), SETTINGS)
    draws = draw_precision(matches, weights, np.arange(30))
    precision = weighted_precision(matches, weights.cases.T)[0]
    values = {"ap": precision.mean(axis=(0, 1)), "ap50": precision[0].mean(axis=0)}
    values["ap75"] = precision[5].mean(axis=0)
    for name, value in values.items():
        drawn = getattr(draws, name)
        assert (drawn.worst < value).all() and (value < drawn.best).all()
    assert (values["ap50"] > values["ap75"] + 0.01).all()


def test_the_unseen_patient_has_as_many_instances_as_the_patient_with_the_most():
    """Perfect cohort: at its worst, recall and precision lose the share of the unseen patient."""
    patient_of = np.array([0, 0, 1, 2, 3, 4])
    instances = np.array([2, 3, 1, 4, 2, 2])
    matched = np.ones((10, 14), bool)
    matches = CategoryMatches(np.repeat(np.arange(6), instances), matched, ~matched, instances)
    weights = Weights(patient_of, SETTINGS)
    draws = draw_precision(matches, weights, patient_of)
    total = weights.cases @ instances
    missed, false = 5 * weights.halves(2).T
    precision = total / (total + false)
    points = np.floor(total / (total + missed) * 100 + 1e-9) + 1
    assert draws.ap.worst == pytest.approx(points / 101 * precision)
    assert draws.ap.best == pytest.approx(np.ones(1000))
    nothing = CategoryMatches(matches.image_of, ~matched, ~matched, instances)
    draws = draw_precision(nothing, weights, patient_of)
    assert draws.ap50.worst == pytest.approx(np.zeros(1000))
    share = 5 * weights.unseen / (total + 5 * weights.unseen)
    assert draws.ap50.best == pytest.approx((np.floor(share * 100 + 1e-9) + 1) / 101)


def test_the_recall_of_the_unseen_patient_is_what_the_limit_allows():
    """The patient with the most instances has two images, with 2 and 3 instances."""
    patient_of = np.array([0, 0, 1, 2])
    instances = np.array([2, 3, 1, 4])
    matched = np.zeros((10, 3), bool)
    matched[:6] = True
    matches = CategoryMatches(np.array([0, 1, 3]), matched, np.zeros_like(matched), instances)
    weights = Weights(patient_of, SETTINGS)
    hits = 0.6 * weights.cases[:, [0, 1, 3]].sum(axis=1)
    total = weights.cases @ instances + 5 * weights.unseen
    for limit, allowed in ((1, 2), (2, 4), (100, 5)):
        draws = draw_recall(matches, weights, patient_of, limit)
        assert draws.worst == pytest.approx(hits / total)
        assert draws.best == pytest.approx((hits + allowed * weights.unseen) / total)


def test_curves_are_means_over_the_categories_with_truth(real):
    evaluation = evaluate(*real, "segm")
    figures, curves = coco_figures(evaluation), precision_curves(evaluation)
    assert curves.mean.mean() == pytest.approx(figures.ap)
    assert curves.iou50.mean() == pytest.approx(figures.ap50)
    assert curves.iou75.mean() == pytest.approx(figures.ap75)
    assert np.nanmean(category_precision(evaluation)) == pytest.approx(figures.ap)
    assert (np.diff(curves.iou50) <= 0).all()


def test_no_detections_no_truth_and_only_a_crowd():
    truth = one_image([annotation(1, 1, 1, SQUARE)])
    for kind in coco.KINDS:
        figures = coco_figures(evaluate(truth, [], kind))
        assert figures.ap == figures.ap50 == figures.ar_max == figures.ap_small == 0
        assert np.isnan(figures.ap_large) and np.isnan(figures.ar_medium)
        assert average_precision(truth, [], kind) == {"ap": 0, "ap50": 0, "ap75": 0}
    results = [detection(1, 1, SQUARE, 0.9)]
    crowd = one_image([annotation(1, 1, 1, SQUARE, crowd=True)])
    for without in (one_image(), crowd):
        evaluation = evaluate(without, results, "segm")
        assert np.isnan(astuple(coco_figures(evaluation))).all()
        assert np.isnan(category_precision(evaluation)).all()
        assert np.isnan(precision_curves(evaluation).mean).all()
        assert average_precision(without, results, "segm")["ap"] is None
    (matches, _) = category_matches(evaluate(crowd, results, "segm"))
    assert matches.ignored.shape == (10, 0) and not matches.instances.any()


def test_detections_in_a_crowd_do_not_count():
    crowd = np.zeros((20, 20), np.uint8)
    crowd[:, 16:] = 1
    truth = one_image([annotation(1, 1, 1, SQUARE), annotation(2, 1, 1, crowd, crowd=True)])
    inside = crowd.copy()
    inside[10:] = 0
    results = [detection(1, 1, inside, 0.9), detection(1, 1, SQUARE, 0.8)]
    assert average_precision(truth, results, "segm")["ap"] == pytest.approx(1)
    (matches, _) = category_matches(evaluate(truth, results, "segm"))
    assert np.abs(weighted_precision(matches, np.ones((1, 1))) - 1).max() < 1e-12
    outside = np.zeros((20, 20), np.uint8)
    outside[:, :3] = 1
    results[0] = detection(1, 1, outside, 0.9)
    assert average_precision(truth, results, "segm")["ap"] == pytest.approx(0.5)


def test_areas_of_detections_are_those_of_the_boxes_or_of_the_masks():
    """An unmatched detection counts only in the range of its area."""
    mask = np.zeros((60, 60), np.uint8)
    mask[np.arange(60), np.arange(60)] = 1  # small mask, medium box
    other = np.zeros((60, 60), np.uint8)
    other[:5, 50:55] = 1
    truth = one_image([annotation(1, 1, 1, other)])
    truth["images"][0] |= {"height": 60, "width": 60}
    results = [detection(1, 1, mask, 0.9), detection(1, 1, other, 0.5)]
    assert coco_figures(evaluate(truth, results, "segm")).ap_small == pytest.approx(0.5)
    assert coco_figures(evaluate(truth, results, "bbox")).ap_small == pytest.approx(1)
    equal_to_pycocotools(truth, results, "bbox")
    equal_to_pycocotools(truth, results, "segm")
