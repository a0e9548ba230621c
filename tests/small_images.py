"""A small cohort of images with nuclei in a copy of the project, two of which are bad."""

import json
from pathlib import Path

import numpy as np
from clones import Clone
from drawn_slides import draw_slide
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


def make_new_images(folder: Path) -> None:
    """Write new.tsv, new images with annotations, and slides.tsv to a clone with these images.

    N1 is in the cohort, N2 is damaged, N3 is an image, N4 two regions of a slide, and the label
    image of N5 has another size. Slide S1 is of a patient of the cohort, S2 is damaged.
    """
    (folder / "slides").mkdir()
    for seed, name in enumerate(("S1", "N4"), 1):
        draw_slide(folder / f"slides/{name}.svs", 10, 12, seed=seed, share=0.6)
    (folder / "slides/S2.svs").write_text("no slide")
    slides = "slide\tpatient\tpath\nS1\tPT1\tslides/S1.svs\nS2\t\tslides/S2.svs\n"
    (folder / "slides.tsv").write_text(slides)
    regions = [
        *(box(*corner, 96, "Region*", "annotation") for corner in ((0, 0), (120, 96))),
        *(box(*corner, 12, "nucleus", "detection") for corner in ((6, 6), (30, 54), (150, 126))),
    ]
    write_geojson(folder / "slides/N4.geojson", regions)
    for name, seed in (("N3", 31), ("N5", 33)):
        pixels, labels = nuclei(seed)
        Image.fromarray(pixels).save(folder / f"slides/{name}.png")
        Image.fromarray(labels[name == "N5" :]).save(folder / f"slides/{name}-labels.png")
    rows = [
        ("image", "patient", "path", "annotations", "site"),
        ("N1", "H1", "cohort/E1.png", "cohort/E1-labels.png", "north"),
        ("N2", "H2", "cohort/TB.png", "cohort/TB-labels.png", "north"),
        ("N3", "H3", "slides/N3.png", "slides/N3-labels.png", "north"),
        ("N4", "H4", "slides/N4.svs", "slides/N4.geojson", "south"),
        ("N5", "H5", "slides/N5.png", "slides/N5-labels.png", "south"),
    ]
    (folder / "new.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))


def box(left: int, top: int, side: int, name: str, kind: str) -> dict[str, object]:
    """Return a square as an object of QuPath's GeoJSON."""
    right, bottom = left + side, top + side
    corners = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [corners]},
        "properties": {"objectType": kind, "classification": {"name": name}},
    }


def write_geojson(path: Path, features: list[dict[str, object]]) -> None:
    """Write objects as QuPath exports them."""
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
