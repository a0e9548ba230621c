"""Assumptions about the stages of instance segmentation, for estimates."""

from gigatile.planning.stages import Stage, TaskPlan, with_shared_stages

# Measured on a core of a server, per megapixel of the files.
PLAN = TaskPlan(
    stages=with_shared_stages(
        demo={"demo_images": Stage(start=1)},
        prepare={"prepare": Stage(("demo_images",), start=2, megapixel=1, storage=2_000_000)},
        evaluate={
            "evaluate": Stage(
                ("collect", "prepare", "choose_model"), start=10, model=0.5, storage=500_000
            )
        },
        predict={
            "predict": Stage(
                ("collect_new", "prepare_new", "choose_model"), start=10, model=0.5, storage=500_000
            )
        },
        shards=Stage(megapixel=0.01, storage=2_000_000),
        validate=0.8,
        external={
            "external": Stage(
                (
                    *("evaluate", "choose_model", "prepare_new", "collect_new", "predict"),
                    "prediction_pages",
                ),
                start=5,
                megapixel=0.05,
            ),
            "external_page": Stage(("evaluate", "choose_model", "external"), start=3),
        },
    )
    | {
        # A slide has a hundred times the megapixels of an image, or more: `slide`, not `megapixel`.
        # About 240 mm² of tissue at 0.5 µm per pixel on two cores.
        "detect_slide": Stage(("choose_model",), start=10, slide=3600, storage=0),
        "slide_pages": Stage(("collect", "choose_model", "detect_slide"), start=5),
    },
    per_unit=frozenset(("detect_slide",)),
    column="megapixels",
    estimate=0.3,
    megapixels=lambda settings: 1.0,
    divided=frozenset(("prepare", "prepare_new")),
)
