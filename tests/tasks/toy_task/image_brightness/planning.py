"""Assumptions about the stages, for estimates."""

from gigatile.planning.stages import Stage, TaskPlan, with_shared_stages

PLAN = TaskPlan(
    stages=with_shared_stages(
        demo={},
        prepare={"prepare_image": Stage(storage=1000)},
        evaluate={"evaluate": Stage(("collect", "choose_model"), model=0.3)},
        predict={},
        shards=Stage(storage=1000),
        validate=0.3,
    ),
    per_unit=frozenset(("prepare_image", "prepare_image_new")),
    column="brightness",
    estimate=0.001,
    megapixels=lambda settings: 1.0,
)
