"""Assumptions about the stages of each task: which files they read, and how fast they are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """Assumptions about a stage.

    Attributes:
        after: the stages that produce its input.
        start: seconds until a job starts its work.
        slide: seconds per slide, or case.
        megapixel: seconds of one core per megapixel of tiles, or per megavoxel of prepared cases.
        model: for a stage that runs a model: its time per megapixel, as a fraction of training
            (`MODELS`).
        storage: bytes of output per megapixel.
    """

    after: tuple[str, ...] = ()
    start: float = 1
    slide: float = 0
    megapixel: float = 0
    model: float = 0
    storage: float = 0


# Measured on a core of a server. A tile of 224 px has 0.05 megapixels and about 15 kB.
SLIDE_STAGES = {
    "demo_slide": Stage(start=2),
    "split_patients": Stage(slide=0.001),
    "tile": Stage(("demo_slide",), megapixel=0.012, storage=300_000),
    "collect": Stage(("tile",), slide=0.002),
    "collect_training": Stage(("tile",), slide=0.002),
    "write_shards": Stage(("collect_training",), start=2, megapixel=0.0005, storage=300_000),
    "train": Stage(("write_shards",), start=10, model=1),
    "validate": Stage(("write_shards", "train"), start=8, model=0.3),
    "choose_model": Stage(("train", "validate")),
    "evaluate": Stage(("collect", "choose_model"), start=8, model=0.3),
    "report": Stage(
        ("split_patients", "collect", "write_shards", "choose_model", "evaluate"),
        start=3,
        slide=1,
    ),
    "tile_new": Stage(megapixel=0.012, storage=300_000),
    "collect_new": Stage(("tile_new",), slide=0.002),
    "predict": Stage(("collect_new", "choose_model"), start=8, model=0.3),
    "prediction_pages": Stage(
        ("collect", "collect_new", "choose_model", "predict"), start=3, slide=1
    ),
}
# A voxel with four channels and labels has 9 bytes. Sliding windows that overlap by half visit each
# voxel eight times.
CASE_STAGES = {
    "demo_case": Stage(start=1),
    "split_patients": Stage(slide=0.001),
    "prepare": Stage(("demo_case",), start=1, megapixel=1.5, storage=9_000_000),
    "collect": Stage(("prepare",), slide=0.002),
    "collect_training": Stage(("prepare",), slide=0.002),
    "write_shards": Stage(("collect_training",), start=2, megapixel=0.01, storage=9_000_000),
    "train": Stage(("write_shards",), start=10, model=1),
    "validate": Stage(("write_shards", "train"), start=8, model=2.4),
    "choose_model": Stage(("train", "validate")),
    "segment": Stage(("prepare", "choose_model"), start=8, model=2.4, storage=10_000),
    "evaluate": Stage(("collect", "choose_model", "segment"), start=2, megapixel=0.3),
    "report": Stage(
        ("split_patients", "collect", "write_shards", "choose_model", "segment", "evaluate"),
        start=3,
        slide=1,
    ),
    "prepare_new": Stage(start=1, megapixel=1.5, storage=9_000_000),
    "collect_new": Stage(("prepare_new",), slide=0.002),
    "segment_new": Stage(("prepare_new", "choose_model"), start=8, model=2.4, storage=10_000),
    "prediction_pages": Stage(
        ("collect", "collect_new", "choose_model", "segment_new"), start=3, slide=1
    ),
}
# By the unit of the task.
STAGES = {"slide": SLIDE_STAGES, "case": CASE_STAGES}
# Stages with a job for each slide or case.
UNIT_STAGES = frozenset(
    ("demo_slide", "tile", "tile_new")
    + ("demo_case", "prepare", "prepare_new", "segment", "segment_new")
)
# Seconds of training per megapixel, or megavoxel: on a core, and on a GPU.
MODELS = {
    "small_cnn": (0.2, 0.02),
    "resnet50": (5.0, 0.05),
    "small_unet": (1.1, 0.01),
    "unet": (17.0, 0.05),
}
# Before any slide is tiled: tiles of a slide. Before any case is prepared: its megavoxels, for a
# head at 1 mm.
TILES_PER_SLIDE = 10_000
MEGAVOXELS = 3.5
