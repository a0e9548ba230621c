"""A small cohort of images with nuclei in a copy of the project, two of which are bad."""

from pathlib import Path

import numpy as np
from clones import Clone
from PIL import Image

SPLITS = {
    "train": ["T1", "T2", "T3", "T4", "T5", "TB"],
    "valid": ["V1", "V2"],
    "test": ["E1", "E2", "E3", "EB"],
}
BAD = {"TB", "EB"}
SIDE = 96
# The sections of the settings that predict images and whole slides, with the scores of a model that
# was hardly trained.
PREDICTED = """\
predict: {samples: new.tsv, slides: slides.tsv}
slide_instances: {score_threshold: 0.02}
"""


def image_settings(
    more: str = "", train: str = "ranks_per_node: 1, epochs: 2, segment_epochs: 2, batch_size: 2"
) -> str:
    """Return the text of images.yaml."""
    return f"""\
run: small
task: instance_segmentation
samples: cohort/images.tsv
instances: {{categories: [nucleus], jobs: 1}}
detection:
  canvas: [96, 96]
  anchor_sizes: [12, 24, 48, 96, 192]
  rpn_pre_nms_topk_train: 50
  rpn_post_nms_topk_train: 50
  roi_batch_size_per_image: 16
  score_threshold: 0.001
train: {{{train}}}
evaluate: {{resamples: 1000, score_threshold: 0.01}}
{more}"""


def nuclei(seed: int, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return an image of nuclei (side, side, 3) uint8, and its label image uint8."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE]
    pixels = random.normal((225, 190, 215), 6, (SIDE, SIDE, 3))
    labels = np.zeros((SIDE, SIDE), np.uint8)
    for number in range(1, count + 1):
        row, column = random.uniform(5, SIDE - 5, 2)
        height, width = random.uniform(5, 9, 2)
        inside = ((y - row) / height) ** 2 + ((x - column) / width) ** 2 < 1
        inside &= labels == 0
        labels[inside] = number
        pixels[inside] = random.normal((95, 60, 130), 10, (int(inside.sum()), 3))
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


def make_small_images(folder: Path) -> Clone:
    """Make a clone with images.yaml and its cohort: PNG images with label images."""
    made = Clone(folder)
    cohort = made.folder / "cohort"
    cohort.mkdir()
    rows = ["image\tpatient\tpath\tannotations\tsplit\tsite"]
    names = [(split, name) for split, members in SPLITS.items() for name in members]
    for seed, (split, name) in enumerate(names):
        pixels, labels = nuclei(seed)
        Image.fromarray(pixels).save(cohort / f"{name}.png")
        Image.fromarray(labels if name != "EB" else labels[:-1]).save(cohort / f"{name}-labels.png")
        site = "north" if seed % 2 else "south"
        rows.append(f"{name}\tP{name}\t{name}.png\t{name}-labels.png\t{split}\t{site}")
    whole = (cohort / "TB.png").read_bytes()
    (cohort / "TB.png").write_bytes(whole[: len(whole) // 2])
    made.write("cohort/images.tsv", "\n".join(rows) + "\n")
    made.write("images.yaml", image_settings())
    return made
