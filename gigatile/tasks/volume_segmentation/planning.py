"""Assumptions about the stages of volume segmentation, for estimates.

Read megavoxels for megapixels.
"""

import math

from gigatile.planning.stages import Stage, TaskPlan, with_shared_stages

# Measured on a core of a server. A voxel with four channels and labels has 9 bytes. Sliding windows
# that overlap by half visit each voxel eight times. A head at 1 mm has 3.5 megavoxels.
PLAN = TaskPlan(
    stages=with_shared_stages(
        demo={"demo_case": Stage(start=1)},
        prepare={"prepare": Stage(("demo_case",), start=1, megapixel=1.5, storage=9_000_000)},
        evaluate={
            "segment": Stage(("prepare", "choose_model"), start=8, model=2.4, storage=10_000),
            "evaluate": Stage(("collect", "choose_model", "segment"), start=2, megapixel=0.3),
        },
        predict={
            "segment_new": Stage(
                ("prepare_new", "choose_model"), start=8, model=2.4, storage=10_000
            )
        },
        shards=Stage(megapixel=0.01, storage=9_000_000),
        validate=2.4,
        external={
            "external": Stage(
                ("evaluate", "choose_model", "collect_new", "segment_new", "prediction_pages"),
                start=2,
                megapixel=0.3,
            ),
            "external_page": Stage(("evaluate", "choose_model", "external"), start=3),
        },
    ),
    per_unit=frozenset(
        ("demo_case", "prepare", "prepare_new", "segment", "segment_new"),
    ),
    column="megavoxels",
    estimate=3.5,
    megapixels=lambda settings: 1.0,
    per_epoch=lambda settings: (
        settings["patches"]["per_case"] * math.prod(settings["patches"]["size"]) / 1e6
    ),
)
