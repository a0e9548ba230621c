"""Assumptions about the stages of slide classification, for estimates."""

from dataclasses import replace

from gigatile.planning.stages import Stage, with_shared_stages
from gigatile.tasks.tile_classification.planning import CALIBRATION, EXTERNAL, POINTS
from gigatile.tasks.tile_classification.planning import PLAN as TILES

# As for tiles. A slide is scored in one pass, a third of the work of training on it.
_SCORE = Stage(("tile", "choose_model"), start=8, model=0.3, storage=20_000)
PREPARE = {"tile": Stage(("demo_slide",), megapixel=0.012, storage=300_000)}
EVALUATE = {"score": _SCORE, "evaluate": Stage(("collect", "choose_model", "score"), start=4)}
VALIDATE = {
    "score_valid": _SCORE,
    "evaluate_valid": Stage(("collect_training", "choose_model", "score_valid"), start=4),
}
PREDICT = {
    "score_new": replace(_SCORE, after=("tile_new", "choose_model")),
    "predict": Stage(("collect_new", "choose_model", "score_new"), start=4),
}
PER_UNIT = frozenset(("demo_slide", "tile", "tile_new", "score", "score_valid", "score_new"))

PLAN = replace(
    TILES,
    stages=with_shared_stages(
        demo={"demo_slide": Stage(start=2)},
        prepare=PREPARE,
        evaluate={**EVALUATE, **CALIBRATION},
        thresholds={**VALIDATE, **POINTS},
        predict=PREDICT,
        external=EXTERNAL,
        shards=Stage(megapixel=0.0005, storage=300_000),
        validate=0.3,
    ),
    per_unit=PER_UNIT,
)
