"""Assumptions about the stages of tile classification, for estimates."""

from gigatile.cohort.samples import Sample
from gigatile.planning.stages import Stage, TaskPlan, with_shared_stages
from gigatile.slides.slide_files import size_and_time_of

# Of a slide's files, at least; JPEG at level 0 takes more.
BYTES_PER_MEGAPIXEL = 250_000

# Of the scores of slides.
POINTS = {"operating_points": Stage(("choose_model", "evaluate_valid"), start=2)}
CALIBRATION = {"calibration": Stage(("evaluate", "operating_points"), start=3)}
_FIGURES = ("evaluate", "calibration", "operating_points")
EXTERNAL = {
    "external": Stage((*_FIGURES, "collect_new", "predict", "prediction_pages"), start=3),
    "external_page": Stage((*_FIGURES, "external"), start=2),
}


def most_megapixels(slide: Sample) -> float:
    """Return an upper limit of the megapixels of a slide's tiles; 0 if the slide is missing."""
    try:
        return size_and_time_of(slide.path)[0] / BYTES_PER_MEGAPIXEL
    except OSError:
        return 0.0


# Measured on a core of a server. A tile of 224 px has 0.05 megapixels and about 15 kB.
PLAN = TaskPlan(
    stages=with_shared_stages(
        demo={"demo_slide": Stage(start=2)},
        prepare={"tile": Stage(("demo_slide",), megapixel=0.012, storage=300_000)},
        evaluate={
            "evaluate": Stage(("collect", "choose_model"), start=8, model=0.3),
            **CALIBRATION,
        },
        thresholds={
            "evaluate_valid": Stage(("collect_training", "choose_model"), start=8, model=0.3),
            **POINTS,
        },
        predict={"predict": Stage(("collect_new", "choose_model"), start=8, model=0.3)},
        external=EXTERNAL,
        shards=Stage(megapixel=0.0005, storage=300_000),
        validate=0.3,
    ),
    per_unit=frozenset(("demo_slide", "tile", "tile_new")),
    column="tiles",
    estimate=10_000,
    most_megapixels=most_megapixels,
    megapixels=lambda settings: settings["tiles"]["size"] ** 2 / 1e6,
)
