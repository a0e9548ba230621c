"""Assumptions about the stages of the prediction of outcomes, for estimates."""

from dataclasses import replace

from gigatile.planning.stages import Stage, with_shared_stages
from gigatile.tasks.slide_embedding.planning import EVALUATE, PREDICT, PREPARE, STORED, VALIDATE
from gigatile.tasks.slide_embedding.planning import PLAN as EMBEDDINGS

# Of predicted outcomes.
EXTERNAL = {
    "external": Stage(
        ("choose_model", "evaluate", "collect_new", "predict", "prediction_pages"), start=3
    ),
    "external_page": Stage(("evaluate", "external"), start=2),
}

PLAN = replace(
    EMBEDDINGS,
    stages=with_shared_stages(
        demo={"demo_slide": Stage(start=2)},
        prepare=PREPARE,
        evaluate={
            "score_slides": EVALUATE["score_slides"],
            "evaluate": Stage(
                ("collect", "choose_model", "score_slides", "evaluate_valid"), start=4
            ),
        },
        thresholds=VALIDATE,
        predict=PREDICT,
        external=EXTERNAL,
        shards=Stage(megapixel=0.0005, storage=STORED // 2),
        validate=0.3,
    ),
)
