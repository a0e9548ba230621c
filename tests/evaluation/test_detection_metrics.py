"""The metrics of detected instances in metrics.json: figures, counts, and their intervals."""

import json

import numpy as np
import pytest
from random_instances import (
    SQUARE,
    annotation,
    detection,
    one_image,
    random_cohort,
    shifted_copies,
)

from gigatile.errors import UserError
from gigatile.evaluation.coco import average_precision
from gigatile.evaluation.coco_draws import (
    CategoryMatches,
    draw_precision,
    draw_recall,
    weighted_precision,
)
from gigatile.evaluation.coco_input import read_coco
from gigatile.evaluation.detection_metrics import DetectionMetrics, evaluate_detections
from gigatile.evaluation.instances import InstanceCounts, aji, count_instances, ratios
from gigatile.evaluation.intervals import Weights, draw_mean
from gigatile.settings.evaluate import EvaluationSettings

# pycocotools 2.0.11 has no code for the keyword copy of NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SETTINGS = EvaluationSettings()
FIGURES = ("pq", "f1", "sq", "precision", "recall")


def metrics_of(images=40, patients=10, **options):
    random = np.random.default_rng(4)
    truth, results = random_cohort(random, images, size=(80, 90), crowds=0.05)
    ids = sorted(image["id"] for image in truth["images"])
    by_image = {image: f"p{number % patients}" for number, image in enumerate(ids)}
    inputs = {"a.json": "0" * 64}
    return (
        truth,
        results,
        evaluate_detections(truth, results, by_image, SETTINGS, inputs=inputs, **options),
    )


def intervals_of(value):
    """Return all intervals of the metrics, at any depth."""
    if isinstance(value, dict):
        if "no_interval" in value:
            return [value]
        return [interval for part in value.values() for interval in intervals_of(part)]
    return []


def test_metrics_of_a_cohort():
    truth, results, metrics = metrics_of(max_detections=200, score_threshold=0.25)
    crowds = sum(entry["iscrowd"] for entry in truth["annotations"])
    assert metrics.categories == ["category 3", "category 7"]
    assert (metrics.n, metrics.patients, metrics.crowds) == (40, 10, crowds)
    assert metrics.instances == len(truth["annotations"]) - crowds
    assert metrics.detections == len(results) and metrics.max_detections == 200
    assert metrics.inputs == {"a.json": "0" * 64}
    assert metrics.intervals.settings() == {"resamples": 1000, "seed": 1}
    for part, kind in ((metrics.box, "bbox"), (metrics.mask, "segm")):
        expected = average_precision(truth, results, kind, 200)
        for name, value in expected.items():
            assert getattr(part, name).value == pytest.approx(value, abs=1e-6)
        mean = np.mean([interval.value for interval in part.per_category.values()])
        assert mean == pytest.approx(part.ap.value, abs=1e-5)
        assert len(part.curves.mean) == len(part.curves.recall) == 101
        assert np.mean(part.curves.iou50) == pytest.approx(part.ap50.value, abs=1e-5)
        assert np.mean(part.curves.iou75) == pytest.approx(part.ap75.value, abs=1e-5)
    counts, predictions = count_instances(read_coco(truth, results), 0.25)
    separate = metrics.separate
    assert separate.predictions == predictions.sum() and separate.score_threshold == 0.25
    assert separate.aji.value == pytest.approx(aji(counts).value, abs=1e-6)
    with np.errstate(invalid="ignore"):
        by_image = counts.intersection / counts.union
    assert separate.aji_of_images.value == pytest.approx(np.nanmean(by_image), abs=1e-6)
    assert separate.aji_of_images.n == np.count_nonzero(counts.union)
    weights, patient_of = Weights(np.arange(40) % 10, SETTINGS), np.arange(40) % 10
    ends = aji(counts).draw(weights, patient_of).ends(np.nan)
    assert (separate.aji.low, separate.aji.high) == pytest.approx(ends, abs=1e-6)
    ends = draw_mean(by_image, weights, 0, 1).ends(np.nan)
    mean = separate.aji_of_images
    assert (mean.low, mean.high) == pytest.approx(ends, abs=1e-6)
    for number, name in enumerate(metrics.categories):
        of_category = ratios(counts, number)
        assert {n: r.lowest for n, r in of_category.items() if r.lowest} == {"sq": 0.5}
        for figure in FIGURES:
            value = getattr(separate, figure).per_class[name].value
            assert value == pytest.approx(of_category[figure].value, abs=1e-6)
        assert separate.counts[name].matched == counts.matched[:, number].sum()
        assert separate.counts[name].false == counts.false[:, number].sum()
        assert separate.counts[name].missed == counts.missed[:, number].sum()
    for figure in FIGURES:
        by_class = getattr(separate, figure)
        mean = np.mean([interval.value for interval in by_class.per_class.values()])
        assert by_class.macro.value == pytest.approx(mean, abs=1e-6)
    total = sum(metrics.instances_of_categories.values())
    assert total == metrics.instances
    every = intervals_of(metrics.to_json())
    assert len(every) == 2 * (12 + 2) + 2 + 3 * len(FIGURES)
    # One instance has more than 32² pixels, and none more than 96².
    for part in (metrics.box, metrics.mask):
        assert part.ap_small.patients == part.ar_small.patients == 9
        for interval in (part.ap_medium, part.ar_medium):
            assert interval.no_interval == "fewer than 5 patients of category category 3 (1)"
        for interval in (part.ap_large, part.ar_large):
            assert interval.no_interval == "the figure is not defined"
    with_ends = [interval for interval in every if interval["no_interval"] is None]
    assert len(with_ends) == len(every) - 8
    for interval in with_ends:
        assert interval["low"] <= interval["value"] <= interval["high"]
        assert 0 <= interval["low"] < interval["high"] <= 1
    assert DetectionMetrics.model_validate(json.loads(json.dumps(metrics.to_json()))) == metrics


def test_limit_of_detections_is_that_of_the_settings():
    for limit, name in ((1, "ar_1"), (10, "ar_10")):
        limited, whole = metrics_of(max_detections=limit)[2], metrics_of()[2]
        assert limited.mask.ar_max == getattr(whole.mask, name)
        assert limited.box.ar_max == getattr(whole.box, name)
        assert getattr(whole.mask, name).value <= whole.mask.ar_max.value
    assert whole.mask.ar_1.value < whole.mask.ar_max.value


def test_metrics_of_a_category_that_is_missing_are_refused():
    content = metrics_of()[2].to_json()
    del content["separate"]["pq"]["per_class"]["category 7"]
    with pytest.raises(ValueError, match="pq: no metrics of category 'category 7'"):
        DetectionMetrics.model_validate(content)


def test_patients_are_weighted_not_images():
    """Copies of a patient's images add no information; copies of patients do."""
    truth, results = random_cohort(np.random.default_rng(8), images=8, categories=(1,))
    ids = sorted(image["id"] for image in truth["images"])
    many = truth | {"images": [], "annotations": []}
    more: list = []
    patients, people = {}, {}
    for number, image in enumerate(ids):
        for copy in range(4):
            new = 1000 * (copy + 1) + number
            many["images"].append({"id": new, "height": 48, "width": 40})
            own = [entry for entry in truth["annotations"] if entry["image_id"] == image]
            many["annotations"] += [entry | {"image_id": new} for entry in own]
            more += [r | {"image_id": new} for r in results if r["image_id"] == image]
            patients[new], people[new] = f"p{number}", f"p{number} {copy}"
    one_each = {image: f"p{number}" for number, image in enumerate(ids)}
    single = evaluate_detections(truth, results, one_each, SETTINGS)
    copied = evaluate_detections(many, more, patients, SETTINGS)
    apart = evaluate_detections(many, more, people, SETTINGS)
    for part in ("mask.ap50", "separate.aji", "separate.aji_of_images"):
        group, name = part.split(".")
        first, second, third = (getattr(getattr(m, group), name) for m in (single, copied, apart))
        assert (first.low, first.high) == pytest.approx((second.low, second.high), abs=0.03)
        assert third.high - third.low < 0.7 * (second.high - second.low)
    assert single.separate.pq.macro.low == pytest.approx(copied.separate.pq.macro.low, abs=1e-6)


def test_one_patient_has_figures_but_no_intervals():
    _, _, metrics = metrics_of(patients=1)
    for interval in intervals_of(metrics.to_json()):
        assert interval["low"] is None
        why = "fewer than 5 patients" if interval["value"] is not None else "the figure is not"
        assert interval["no_interval"].startswith(why)
    assert metrics.mask.ap.no_interval == "fewer than 5 patients of category category 3 (1)"


def test_a_category_in_few_patients_has_no_interval_and_neither_has_the_mean():
    truth, results = random_cohort(np.random.default_rng(2), images=10, categories=(1,))
    truth["categories"].append({"id": 2, "name": "rare"})
    ids = sorted(image["id"] for image in truth["images"])
    patients = {image: str(image) for image in ids}
    whole = evaluate_detections(truth, results, patients, SETTINGS)
    # A category without instances and predictions is left out of the means.
    assert whole.mask.per_category["rare"].no_interval == "the figure is not defined"
    assert whole.mask.ap.low is not None and whole.separate.pq.macro.low is not None
    assert whole.separate.pq.macro.value == whole.separate.pq.per_class["category 1"].value
    for number, image in enumerate(ids[:4]):
        mask = np.pad(SQUARE, ((0, 28), (0, 20)))
        truth["annotations"].append(annotation(900 + number, image, 2, mask))
    rare = evaluate_detections(truth, results, patients, SETTINGS)
    assert rare.mask.per_category["rare"].value == 0
    message = "fewer than 5 patients of category rare (4)"
    for interval in (rare.mask.ap, rare.box.ap50, rare.separate.pq.macro):
        assert interval.no_interval == message
    assert rare.mask.per_category["category 1"].low is not None
    assert rare.separate.precision.macro.low is not None  # no prediction of it, so left out


@pytest.mark.parametrize("crowd", [False, True])
def test_cohort_without_truth(crowd):
    annotations = [annotation(1, 1, 1, SQUARE, crowd=True)] if crowd else []
    truth = one_image(annotations)
    results = [detection(1, 1, SQUARE, 0.9)]
    metrics = evaluate_detections(truth, results, {1: "p"}, SETTINGS)
    assert metrics.mask.ap.value is metrics.mask.ap_small.value is None
    assert metrics.mask.curves.mean is None
    assert metrics.mask.ap.no_interval == "the figure is not defined"
    expected = None if crowd else 0
    assert metrics.separate.pq.macro.value == metrics.separate.aji.value == expected
    assert metrics.separate.recall.macro.value is None
    assert metrics.separate.sq.macro.value is None
    assert (metrics.instances, metrics.crowds) == (0, int(crowd))


def test_cohort_without_detections():
    truth, _ = random_cohort(np.random.default_rng(1), images=12, crowds=0)
    patients = {image["id"]: str(image["id"]) for image in truth["images"]}
    metrics = evaluate_detections(truth, [], patients, SETTINGS)
    for interval in (metrics.mask.ap, metrics.separate.pq.macro, metrics.separate.aji):
        assert interval.value == interval.low == 0 and 0 < interval.high < 0.6
    assert metrics.separate.precision.macro.value is None
    assert metrics.separate.predictions == 0


def test_image_without_a_patient_is_refused():
    truth = one_image()
    with pytest.raises(UserError, match="1 of 1 images have no patient, first 1"):
        evaluate_detections(truth, [], {}, SETTINGS)


def test_real_nuclei_have_intervals(shared_data):
    truth = json.loads((shared_data / "nuclei/annotations.json").read_text())
    truth["images"] = truth["images"][::8]
    kept = {image["id"] for image in truth["images"]}
    truth["annotations"] = [a for a in truth["annotations"] if a["image_id"] in kept]
    truth, results = shifted_copies(truth, np.random.default_rng(0))
    patients = {image: f"p{number % 12}" for number, image in enumerate(sorted(kept))}
    metrics = evaluate_detections(truth, results, patients, SETTINGS, 500, 0.1)
    assert metrics.mask.ap.value < metrics.mask.ap50.value
    assert metrics.mask.ar_small.patients == 12
    for interval in intervals_of(metrics.to_json()):
        if interval["no_interval"] is None:
            assert interval["low"] < interval["value"] < interval["high"]


# Distributions of instances per patient and of the share of detected ones. In the last, patients
# with many instances are the difficult ones.
POPULATIONS = {
    "different patients": lambda random, n: (random.poisson(8, n) + 1, random.beta(6, 2, n)),
    "1 of 8 patients missed": lambda random, n: (
        np.full(n, 6),
        np.where(random.random(n) < 1 / 8, 0.0, 0.98),
    ),
    "many instances are difficult": lambda random, n: (
        (counts := np.exp(random.normal(2, 0.8, n)).astype(int) + 1),
        np.clip(1.1 - counts / 40, 0.1, 0.95),
    ),
    "hardly any detected": lambda random, n: (random.poisson(8, n) + 1, random.beta(1, 12, n)),
}


def draw_cohort(random, patients, population):
    """Draw a cohort without masks: matches for AP50 and counts for PQ, an image per patient.

    Patients of whom more is detected have a higher IoU and fewer false detections.
    """
    instances, skill = POPULATIONS[population](random, patients)
    image_of, scores, hits, ious = [], [], [], []
    for patient in range(patients):
        detected = random.random(instances[patient]) < skill[patient]
        overlap = random.beta(8, 3 - 2 * skill[patient], instances[patient])[detected]
        false = random.poisson(3 * (1.2 - skill[patient]))
        image_of.append(np.full(len(overlap) + false, patient))
        scores += [random.beta(4, 2, len(overlap)), random.beta(2, 3, false)]
        hits += [overlap > 0.5, np.zeros(false, bool)]
        ious += [overlap, np.zeros(false)]
    image_of, scores, hits, ious = map(np.concatenate, (image_of, scores, hits, ious))
    order = np.argsort(-scores)
    matched = np.zeros((10, len(order)), bool)
    matched[0] = hits[order]
    matches = CategoryMatches(image_of[order], matched, np.zeros_like(matched), instances)
    kept = scores >= 0.5

    def by_patient(selected, values=None):
        return np.bincount(image_of[selected], values, patients)[:, None]

    true = by_patient(kept & hits)
    counts = InstanceCounts(
        matched=true,
        false=by_patient(kept & ~hits),
        missed=instances[:, None] - true,
        iou=by_patient(kept & hits, ious[kept & hits]),
        intersection=true[:, 0],
        union=true[:, 0],
    )
    return matches, counts


def figures_of(matches, counts, patients):
    """Return the value and the draws of AP50, of AR and of the ratios."""
    weights = Weights(np.arange(patients), SETTINGS)
    value = weighted_precision(matches, np.ones((patients, 1)))[0, 0].mean()
    yield "ap50", value, draw_precision(matches, weights, np.arange(patients)).ap50
    recall = matches.matched.mean(axis=0).sum() / matches.instances.sum()
    yield "ar_max", recall, draw_recall(matches, weights, np.arange(patients), 100)
    for name, ratio in ratios(counts, 0).items():
        yield name, ratio.value, ratio.draw(weights, np.arange(patients))


def true_figures(population):
    """Return the figures of a large cohort."""
    matches, counts = draw_cohort(np.random.default_rng(0), 20_000, population)
    values = {name: ratio.value for name, ratio in ratios(counts, 0).items()}
    values["ar_max"] = matches.matched.mean(axis=0).sum() / matches.instances.sum()
    return values | {"ap50": weighted_precision(matches, np.ones((20_000, 1)))[0, 0].mean()}


def coverage(population, patients, cohorts):
    """Return the share of cohorts of which the interval contains the true figure."""
    truth = true_figures(population)
    covered = {name: [] for name in truth}
    for number in range(cohorts):
        random = np.random.default_rng([number, patients])
        for name, value, draws in figures_of(*draw_cohort(random, patients, population), patients):
            if not np.isnan(value):
                low, high = draws.ends(value)
                covered[name].append(low <= truth[name] <= high)
    return {name: float(np.mean(held)) for name, held in covered.items()}


@pytest.mark.parametrize(
    ("population", "patients"), [("1 of 8 patients missed", 8), ("different patients", 25)]
)
def test_intervals_cover(population, patients):
    """As in test_coverage.py, at least 93 % of the intervals contain the true figure."""
    shares = coverage(population, patients, 60)
    assert {name: share for name, share in shares.items() if share < 0.93} == {}
