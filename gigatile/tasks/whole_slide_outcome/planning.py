"""Assumptions about the stages of the prediction of outcomes of whole slides, for estimates."""

from dataclasses import replace

from gigatile.planning.stages import Stage, with_shared_stages
from gigatile.tasks.slide_classification.planning import EVALUATE, PREDICT, PREPARE, VALIDATE
from gigatile.tasks.slide_classification.planning import PLAN as WHOLE_SLIDES
from gigatile.tasks.slide_outcome.planning import EXTERNAL

PLAN = replace(
    WHOLE_SLIDES,
    stages=with_shared_stages(
        demo={"demo_slide": Stage(start=2)},
        prepare=PREPARE,
        evaluate={
            "score": EVALUATE["score"],
            "evaluate": Stage(("collect", "choose_model", "score", "evaluate_valid"), start=4),
        },
        thresholds=VALIDATE,
        predict=PREDICT,
        external=EXTERNAL,
        shards=Stage(megapixel=0.0005, storage=300_000),
        validate=0.3,
    ),
)
