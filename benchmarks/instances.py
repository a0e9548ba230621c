#!/usr/bin/env python3
"""Time instance segmentation: the input of training, COCO's figures, and the joining of windows.

- Input: shuffled, augmented batches of nuclei with their masks, against training steps of
  `mask_small` on the same batches, with the settings of docs/instances.md.
- Figures: truth and detections with the numbers of COCO's val2017, against pycocotools, used as its
  documentation says. The twelve figures of boxes and of masks must be equal.
- Slides: nuclei that overlapping windows detect are joined. The lower bound finds box and area of
  each mask once. The usual way pastes all masks into an image of the slide and labels it, so nuclei
  that touch are one. Peak memory is measured in separate processes.

Rounds alternate; COCO's figures take minutes, so they have one round. Ratios are of processor time,
which other processes affect less.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import cv2
import numpy as np
import yaml

from gigatile.instances.detection import Detection
from gigatile.instances.seams import SeamJoiner
from gigatile.instances.window_grid import WindowGrid

ROOT = Path(__file__).parents[1]
CORES = 2
# Side of the cell of a nucleus; side and overlap of the windows of a slide, in pixels.
CELL, WINDOW, OVERLAP = 24, 512, 64
# Of COCO's val2017: instances of an image, categories, size of an image.
INSTANCES, CATEGORIES, SIZE = 7.3, 80, (480, 640)
# False detections of an image; with those of instances about 36, as a detector has that keeps
# scores from 0.05.
FALSE = 30


def medians(
    ways: Mapping[str, Callable[[], Any]], rounds: int, warm_up: bool = False
) -> dict[str, tuple[float, float]]:
    """Return the median seconds of each way: of the processor, and by the clock."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + warm_up):
        for name, run in ways.items():
            start = time.process_time(), time.perf_counter()
            run()
            if number or not warm_up:
                times[name].append((time.process_time() - start[0], time.perf_counter() - start[1]))
    return {
        name: (statistics.median(p for p, _ in some), statistics.median(c for _, c in some))
        for name, some in times.items()
    }


# --- The input of training


def documented_settings() -> dict[str, dict[str, Any]]:
    """Return the settings for nuclei from docs/instances.md."""
    page = (ROOT / "docs/instances.md").read_text()
    block = page.split("<!-- file: nuclei.yaml -->\n```yaml\n")[1].split("```")[0]
    settings: dict[str, dict[str, Any]] = yaml.safe_load(block)
    return settings


def write_images(count: int, folder: Path) -> Path:
    """Write shards of images of the demo cohort, repeated; return their manifest."""
    from gigatile.demo.fields import draw_field
    from gigatile.demo.images import COHORT
    from gigatile.instances.label_images import instances_of_labels
    from gigatile.records import write_records
    from gigatile.records.instances import AnnotatedImage, encode_annotated, encode_png
    from gigatile.records.shard_layout import Source
    from gigatile.records.writing import write_shards
    from gigatile.settings.shards import ShardSettings
    from gigatile.tasks.instance_segmentation.records import record_id

    drawn = []
    for field in COHORT[:count]:
        pixels, labels = draw_field(field)
        drawn.append((encode_png(pixels), labels.shape, instances_of_labels(labels)))
    sources = []
    for number in range(count):
        image, shape, instances = drawn[number % len(drawn)]
        name = f"I{number:05d}"
        path = folder / f"{name}.tfrecord"
        record = encode_annotated(AnnotatedImage(image, name, *shape, None, instances))
        write_records(path, [record])
        sources.append(Source(name, name, "", path))
    out = folder / "shards"
    write_shards({"train": sources}, ShardSettings(), out, unit="image", record_id=record_id)
    return out / "manifest.json"


def time_input(images: int, steps: int, rounds: int) -> None:
    from gigatile.training.startup import join_ranks

    with tempfile.TemporaryDirectory() as folder, join_ranks(CORES, 600) as ranks:
        import tensorflow as tf
        from keras import tree

        from gigatile.settings.detection import DetectionSettings
        from gigatile.settings.instances import InstanceSettings
        from gigatile.settings.train import TrainSettings
        from gigatile.tasks.instance_segmentation.definition import TASK
        from gigatile.tasks.instance_segmentation.training import InstanceSegmentation
        from gigatile.training.batches import batches
        from gigatile.training.learner import Learner
        from gigatile.training.sample_order import Epoch

        given = documented_settings()
        settings = TrainSettings(**{**TASK.train_defaults, "ranks_per_node": 1, **given["train"]})
        task = InstanceSegmentation(InstanceSettings(), DetectionSettings(**given["detection"]))
        reader = task.reader(write_images(images, Path(folder)), "train")
        epoch = Epoch(task.sampling(reader, settings), 0, reader.classes_of)
        learner = Learner(task.networks(reader, settings, False).trained, task, settings, ranks)
        size = settings.batch_size

        def load(some: range | None = None) -> Iterator[Any]:
            return batches(task.source(reader), epoch, size, 0, 1, CORES, some)

        kept = list(load(range(min(steps, epoch.steps(size)))))
        requests = np.zeros(3, np.float32)

        def train() -> None:
            for batch in kept:
                inputs = tree.map_structure(tf.convert_to_tensor, batch.inputs)
                learner.step(batch, inputs, requests, settings.learning_rate)

        def read() -> None:
            for batch in load():
                stages["reading"] += batch.read_seconds
                stages["augmentation"] += batch.decode_seconds

        stages = {"reading": 0.0, "augmentation": 0.0}
        seconds = medians({"input": read, "model": train}, rounds, warm_up=True)
        reader.close()
    shown = {"input": len(epoch), "model": len(kept) * size}
    print(f"\n{images} images of 256² px, canvas {given['detection']['canvas']}, {CORES} cores")
    speeds = {}
    for name, (processor, clock) in seconds.items():
        speeds[name] = shown[name] / processor
        print(
            f"{name:6} {1000 * processor / shown[name]:8.1f} ms of the processor per image; "
            f"{shown[name] / clock:7.1f} images per second"
        )
    print(f"input / model, images per processor time: {speeds['input'] / speeds['model']:.0f}")


# --- COCO's figures


def draw_cohort(images: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return truth and detections in COCO's formats: ellipses, shifted, missed and invented."""
    from gigatile.instances.annotations import empty_instances, stack_instances
    from gigatile.tasks.instance_segmentation.coco_results import CocoTruth, coco_results

    random = np.random.default_rng(0)
    height, width = SIZE
    # A few categories have most instances.
    shares = 1 / np.arange(1, CATEGORIES + 1)
    shares /= shares.sum()

    def ellipse() -> tuple[np.ndarray, tuple[int, int], int]:
        """Return a mask, its corner, and its category."""
        sides = np.exp(random.normal(np.log(60), 0.9, 2)).clip(4, (height, width)).astype(int)
        mask = np.zeros(sides, np.uint8)
        axes = ((sides[1] - 1) / 2, (sides[0] - 1) / 2)
        cv2.ellipse(mask, (axes, (2 * axes[0], 2 * axes[1]), 0), 1, -1)
        mask[sides[0] // 2, sides[1] // 2] = 1
        top, left = (int(random.integers(0, room + 1)) for room in (height, width) - sides)
        return mask, (top, left), int(random.choice(CATEGORIES, p=shares))

    truth, results = CocoTruth([f"category {k}" for k in range(CATEGORIES)]), []
    for number in range(1, images + 1):
        count = random.geometric(1 / (1 + INSTANCES)) - 1
        drawn = [ellipse() for _ in range(count)]
        masks = [(mask, corner) for mask, corner, _ in drawn]
        classes = [category + 1 for _, _, category in drawn]
        instances = stack_instances(masks, classes) if masks else empty_instances()
        truth.add(f"{number}.jpg", height, width, instances)
        detections = []
        for mask, (top, left), category in drawn:
            if random.random() < 0.2:
                continue  # missed
            y, x = (random.normal(0, 0.06, 2) * mask.shape).round().astype(int).tolist()
            top, left = min(max(top + y, 0), height - 1), min(max(left + x, 0), width - 1)
            mask = mask[: height - top, : width - left] > 0
            if random.random() < 0.1:
                category = int(random.integers(CATEGORIES))
            if mask.any():
                detections.append(Detection(mask, top, left, category, random.beta(3, 2)))
        for _ in range(random.poisson(FALSE)):
            mask, (top, left), category = ellipse()
            detections.append(Detection(mask > 0, top, left, category, random.beta(1, 4)))
        results += coco_results(number, height, width, detections)
    return truth.to_json(), results


def pycocotools_figures(truth: dict[str, Any], results: list[dict[str, Any]]) -> np.ndarray:
    """Return the twelve figures of boxes and of masks: (2, 12)."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    figures = []
    for kind, part in (("bbox", "bbox"), ("segm", "segmentation")):
        keys = ("image_id", "category_id", "score", part)
        with contextlib.redirect_stdout(io.StringIO()):
            reference = COCO()
            # pycocotools writes into the entries.
            annotations = [dict(entry) for entry in truth["annotations"]]
            reference.dataset = truth | {"annotations": annotations}
            reference.createIndex()
            detections = reference.loadRes([{key: r[key] for key in keys} for r in results])
            evaluation = COCOeval(reference, detections, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        figures.append(evaluation.stats)
    return np.array(figures)


def time_figures(images: int) -> None:
    from gigatile.evaluation.coco import KINDS, coco_figures, match_detections
    from gigatile.evaluation.coco_input import read_coco
    from gigatile.evaluation.detection_metrics import evaluate_detections
    from gigatile.settings.evaluate import EvaluationSettings

    truth, results = draw_cohort(images)
    patients = {entry["id"]: str(entry["id"]) for entry in truth["images"]}
    figures: dict[str, np.ndarray] = {}

    def reference() -> None:
        figures["pycocotools"] = pycocotools_figures(truth, results)

    def without_intervals() -> None:
        data = read_coco(truth, results)
        ours = [astuple(coco_figures(match_detections(data, kind))) for kind in KINDS]
        figures["ours"] = np.nan_to_num(ours, nan=-1.0)

    def evaluation() -> None:
        metrics = evaluate_detections(truth, results, patients, EvaluationSettings())
        figures["with intervals"] = np.array([metrics.box.ap.value, metrics.mask.ap.value])

    ways = {"pycocotools": reference, "ours": without_intervals, "with intervals": evaluation}
    seconds = medians(ways, 1)
    np.testing.assert_allclose(figures["ours"], figures["pycocotools"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(figures["with intervals"], figures["ours"][:, 0], atol=1e-6)
    print(
        f"\n{images} images, {CATEGORIES} categories, {len(truth['annotations'])} instances, "
        f"{len(results)} detections; the figures of boxes and masks are equal"
    )
    for name, (processor, clock) in seconds.items():
        print(f"{name:14} {processor:7.1f} s of the processor, {clock:7.1f} s")
    base = seconds["pycocotools"][0]
    print(f"COCO's figures, ours / pycocotools: {seconds['ours'][0] / base:.2f}")
    ratio = seconds["with intervals"][0] / base
    print(f"with intervals, AJI, PQ and F1 / pycocotools without: {ratio:.2f}")


# --- Slides


class Slide:
    """Nuclei in the cells of a square grid, each an ellipse that may touch its neighbours.

    Each window detects its own version of a nucleus: as it is, eroded, or dilated by a pixel.
    """

    def __init__(self, nuclei: int) -> None:
        self.rows = max(2, round(nuclei**0.5))
        side = self.rows * CELL
        self.grid = WindowGrid(side, side, min(WINDOW, side), OVERLAP)
        random = np.random.default_rng(nuclei)
        cross, self._versions = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3)), []
        for _ in range(200):
            mask = np.zeros((CELL + 2, CELL + 2), np.uint8)
            axes = random.integers(5, CELL // 2, 2).tolist()
            centre = (CELL // 2 + 1, CELL // 2 + 1)
            cv2.ellipse(mask, centre, axes, float(random.integers(180)), 0, 360, 1, -1)
            self._versions.append([mask, cv2.erode(mask, cross), cv2.dilate(mask, cross)])
        self._shape = random.integers(len(self._versions), size=(self.rows, self.rows))

    def detections(self, window: int) -> list[Detection]:
        """Return what a window detects; its borders cut nuclei."""
        y1, x1, y2, x2 = self.grid.box(window)
        random = np.random.default_rng(window)
        rows = range(max(0, y1 // CELL - 1), min(self.rows, y2 // CELL + 2))
        columns = range(max(0, x1 // CELL - 1), min(self.rows, x2 // CELL + 2))
        versions = random.integers(3, size=(len(rows), len(columns))).tolist()
        detections = []
        for row, of_row in zip(rows, versions, strict=True):
            for column, version in zip(columns, of_row, strict=True):
                top, left = row * CELL - 1, column * CELL - 1
                y, x = max(0, y1 - top), max(0, x1 - left)
                mask = self._versions[self._shape[row, column]][version]
                mask = mask[y : max(0, y2 - top), x : max(0, x2 - left)]
                if mask.any():
                    score = float(random.random())
                    pixels = mask.astype(bool)
                    detections.append(Detection(pixels, top + y - y1, left + x - x1, 0, score))
        return detections


def time_joining(nuclei: int, rounds: int) -> None:
    slide = Slide(nuclei)
    side = slide.rows * CELL
    ratios: dict[str, list[float]] = {"lower bound": [], "labelling": []}
    speeds = []
    for _ in range(rounds):
        joiner, joined, count = SeamJoiner(slide.grid), 0, 0
        picture = np.zeros((side, side), np.uint8)
        seconds = {"ours": 0.0, **dict.fromkeys(ratios, 0.0)}
        for window in range(len(slide.grid)):
            detections = slide.detections(window)
            count += len(detections)
            y, x, _, _ = slide.grid.box(window)
            starts = [time.process_time()]
            joined += len(joiner.add(window, detections))
            starts.append(time.process_time())
            for item in detections:
                pixels = item.mask.view(np.uint8)
                cv2.boundingRect(pixels)
                cv2.countNonZero(pixels)
            starts.append(time.process_time())
            for item in detections:
                top, left, bottom, right = item.crop
                picture[y + top : y + bottom, x + left : x + right] |= item.mask.view(np.uint8)
            starts.append(time.process_time())
            for name, spent in zip(seconds, np.diff(starts).tolist(), strict=True):
                seconds[name] += spent
        start = time.process_time()
        labels = cv2.connectedComponentsWithStats(picture)[0] - 1
        seconds["labelling"] += time.process_time() - start
        joiner.finish()
        assert joined == slide.rows**2, f"{joined} instances instead of {slide.rows**2}"
        for name, values in ratios.items():
            values.append(seconds[name] / seconds["ours"])
        speeds.append(count / seconds["ours"])
    print(f"{joined} nuclei, detected {count} times in {len(slide.grid)} windows of {WINDOW} px")
    speed = statistics.median(speeds)
    print(f"{speed:.0f} detections, {speed * joined / count:.0f} instances joined per second")
    print(
        f"joined / box and area of each mask, speed: {statistics.median(ratios['lower bound']):.3f}"
    )
    print(
        f"joined / pasted and labelled ({labels} instances, as nuclei touch), speed: "
        f"{statistics.median(ratios['labelling']):.3f}"
    )
    peaks = {}
    for number in (nuclei // 4, nuclei):
        line = [sys.executable, __file__, "--memory-of", str(number)]
        peaks[number] = json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)
        peak = peaks[number]
        print(f"{number} nuclei: at most {peak['pending']} detections and {peak['peak']:.0f} MB")
    few, many = (peaks[number]["peak"] for number in peaks)
    print(f"memory of {nuclei} nuclei / {nuclei // 4}: {many / few:.2f}")


def measure_memory(nuclei: int) -> dict[str, float]:
    """Return the peak memory in MB of joining a slide, of which instances are not kept."""
    slide, pending = Slide(nuclei), 0
    joiner = SeamJoiner(slide.grid)
    for window in range(len(slide.grid)):
        joiner.add(window, slide.detections(window))
        pending = max(pending, joiner.pending)
    joiner.finish()
    # Not ru_maxrss: a process inherits it from the one that starts it.
    (line,) = (s for s in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in s)
    return {"peak": int(line.split()[1]) * 1024 / 1e6, "pending": pending}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=200, help="for the input of training")
    parser.add_argument("--steps", type=int, default=10, help="of training in a round")
    parser.add_argument("--coco-images", type=int, default=5000)
    parser.add_argument("--nuclei", type=int, default=100_000, help="of a slide")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of is not None:
        print(json.dumps(measure_memory(args.memory_of)))
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    time_joining(args.nuclei, args.rounds)
    time_figures(args.coco_images)
    time_input(args.images, args.steps, args.rounds)


if __name__ == "__main__":
    main()
