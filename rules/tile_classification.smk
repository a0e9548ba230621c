# Classification of slides by their tiles.


include: "tiles.smk"


# --- Evaluation of the model on the test split


rule evaluate:
    input:
        slides=ALL_TABLE,
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        tiles=f"{RUN}/evaluation/tiles.parquet",
        slides=report(
            f"{RUN}/evaluation/slides.tsv",
            caption="captions/slides.rst",
            category="Evaluation",
            labels={"table": "predicted classes of the test slides"},
        ),
        metrics=report(
            f"{RUN}/evaluation/metrics.json",
            caption="captions/metrics.rst",
            category="Evaluation",
            labels={"table": "metrics with confidence intervals"},
        ),
    log:
        f"{RUN}/logs/evaluate.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: 4
    resources:
        mem_mb=grow(4000),
        runtime=grow(480),
    params:
        **provenance("evaluate", "evaluate"),
        records=folder("tiles"),
        out=subpath(output.slides, parent=True),
        settings=section("evaluate"),
        split="test",
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task tile_classification --table {input.slides:q} --records {params.records:q}'
            " --model {input.model:q} --described {input.described:q} --settings {params.settings:q}"
            " --split {params.split} --out {params.out:q}"
        )


# The scores of the validation split, on which thresholds are chosen. Nothing here depends on a test slide.
use rule evaluate as evaluate_valid with:
    input:
        slides=TRAINING_TABLE,
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        tiles=f"{RUN}/validation/tiles.parquet",
        slides=f"{RUN}/validation/slides.tsv",
    log:
        f"{RUN}/logs/evaluate_valid.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate_valid.tsv"
    params:
        **provenance("evaluate_valid", "evaluate"),
        records=folder("tiles"),
        out=subpath(output.slides, parent=True),
        settings=literal("{}"),
        split="valid",


# --- Prediction for new slides


rule predict:
    input:
        slides=NEW_TABLE,
        model=ancient(f"{MODEL}/model.keras"),
        described=f"{MODEL}/settings.json",
    output:
        tiles=f"{RUN}/predictions/tiles.parquet",
        slides=report(
            f"{RUN}/predictions/slides.tsv",
            caption="captions/predictions.rst",
            category="Predictions",
            labels={"table": "predicted classes of the new slides"},
        ),
        provenance=f"{RUN}/predictions/provenance.json",
    log:
        f"{RUN}/logs/predict.log",
    benchmark:
        f"{RUN}/benchmarks/predict.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: 4
    resources:
        mem_mb=grow(4000),
        runtime=grow(480),
    params:
        **provenance("predict", "predict"),
        records=folder("predictions/tiles"),
        out=subpath(output.slides, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/predict.py" --task tile_classification --table {input.slides:q} --records {params.records:q}'
            " --model {input.model:q} --described {input.described:q} --out {params.out:q}"
        )


# The files of the evaluation and of the prediction that the pages show.
EVALUATED, PREDICTED = rules.evaluate.output, rules.predict.output


include: "slide_figures.smk"
