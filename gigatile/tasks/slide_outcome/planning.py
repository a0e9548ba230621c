"""Assumptions about the stages of the prediction of outcomes, for estimates."""

from dataclasses import replace

from gigatile.planning.stages import Stage, with_shared_stages
from gigatile.tasks.slide_embedding.planning import EMBED, STORED
from gigatile.tasks.slide_embedding.planning import PLAN as EMBEDDINGS

PLAN = replace(
    EMBEDDINGS,
    stages=with_shared_stages(
        demo={"demo_slide": Stage(start=2)},
        prepare={
            "tile": Stage(("demo_slide",), megapixel=0.012, storage=300_000),
            "embed": Stage(("tile",), start=2, megapixel=EMBED, storage=STORED),
        },
        evaluate={
            "score": Stage(("embed", "choose_model"), start=8, model=0.3, storage=5_000),
            "evaluate": Stage(("collect", "choose_model", "score", "evaluate_valid"), start=4),
        },
        thresholds={
            "score_valid": Stage(("embed", "choose_model"), start=8, model=0.3, storage=5_000),
            "evaluate_valid": Stage(("collect_training", "choose_model", "score_valid"), start=4),
        },
        predict={},
        shards=Stage(megapixel=0.0005, storage=STORED // 2),
        validate=0.3,
    ),
    per_unit=frozenset(("demo_slide", "tile", "embed", "score", "score_valid")),
)
