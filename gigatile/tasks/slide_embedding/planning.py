"""Assumptions about the stages of the classification of embeddings, for estimates."""

from dataclasses import replace

from gigatile.planning.stages import Stage, with_shared_stages
from gigatile.tasks.tile_classification.planning import CALIBRATION, EXTERNAL, POINTS
from gigatile.tasks.tile_classification.planning import PLAN as TILES

# Seconds for a megapixel on a core: EfficientNet-Lite0 takes 15 ms for a tile of 224 px. The
# encoders of pathology take a hundred times as long, on a GPU about as long.
EMBED = 0.3
# Bytes for a megapixel: 1,536 numbers for a tile of 224 px, as records and as HDF5.
STORED = 250_000

_SCORE = Stage(("split_patients", "embed", "choose_model"), start=8, model=0.3, storage=5_000)
PREPARE = {
    "tile": Stage(("demo_slide",), megapixel=0.012, storage=300_000),
    "embed": Stage(("tile",), start=2, megapixel=EMBED, storage=STORED),
}
EVALUATE = {
    "score_slides": _SCORE,
    "evaluate": Stage(("collect", "choose_model", "score_slides"), start=4),
}
VALIDATE = {
    "score_valid_slides": _SCORE,
    "evaluate_valid": Stage(("collect_training", "choose_model", "score_valid_slides"), start=4),
}
PREDICT = {
    "score_new_slides": replace(_SCORE, after=("collect_new", "embed_new", "choose_model")),
    "predict": Stage(("collect_new", "choose_model", "score_new_slides"), start=4),
}

PLAN = replace(
    TILES,
    stages=with_shared_stages(
        demo={"demo_slide": Stage(start=2)},
        prepare=PREPARE,
        evaluate={
            **EVALUATE,
            "baselines": Stage(("collect", "choose_model", "evaluate"), start=4, slide=0.1),
            **CALIBRATION,
        },
        thresholds={**VALIDATE, **POINTS},
        predict=PREDICT,
        external=EXTERNAL,
        shards=Stage(megapixel=0.0005, storage=STORED // 2),
        validate=0.3,
    ),
    per_unit=frozenset(("demo_slide", "tile", "tile_new", "embed", "embed_new")),
)
