# From tiles to the scores of whole slides by a model of them.


include: "tiles.smk"


# --- Evaluation of the model on the test split: a job scores each slide, another collects all of them


# A slide that could not be tiled gets an empty map.
rule score:
    input:
        tiled=f"{RUN}/tiles/{{slide}}.json",
        records=ancient(f"{RUN}/tiles/{{slide}}.tfrecord"),
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        map=update(f"{RUN}/evaluation/maps/{{slide}}.parquet"),
        state=update(f"{RUN}/evaluation/maps/{{slide}}.json"),
    log:
        f"{RUN}/logs/score/{{slide}}.log",
    conda:
        "../envs/gpu.yaml"
    resources:
        mem_mb=grow(6000),
        runtime=grow(60),
        slide_at_once=1,
        window=SETTINGS.whole_slides.window,
    params:
        **provenance("score", "predict", "{slide}"),
        task=SETTINGS.task,
        settings=section("whole_slides"),
    shell:
        run_recorded(
            "predict",
            "--task {params.task} --slide {wildcards.slide} --records {input.records:q}"
            " --tiled {input.tiled:q} --model {input.model:q} --described {input.described:q}"
            " --settings {params.settings:q} --window {resources.window} --cores {threads}"
            " --map {output.map:q} --out {output.state:q}",
            reads="{input.tiled:q} {input.model:q} {input.described:q}",
            state="{output.state}",
            made_with="{params.code} {params.settings:q}",
        )


# The scores of the validation split, on which thresholds are chosen. Nothing here depends on a test slide.
use rule score as score_valid with:
    output:
        map=update(f"{RUN}/validation/maps/{{slide}}.parquet"),
        state=update(f"{RUN}/validation/maps/{{slide}}.json"),
    log:
        f"{RUN}/logs/score_valid/{{slide}}.log",
    params:
        **provenance("score_valid", "predict", "{slide}"),
        task=SETTINGS.task,
        settings=section("whole_slides"),


# --- Prediction for new slides: a job per slide


use rule score as score_new with:
    input:
        tiled=f"{RUN}/predictions/tiles/{{slide}}.json",
        records=ancient(f"{RUN}/predictions/tiles/{{slide}}.tfrecord"),
        model=ancient(f"{MODEL}/model.keras"),
        described=f"{MODEL}/settings.json",
    output:
        map=update(f"{RUN}/predictions/maps/{{slide}}.parquet"),
        state=update(f"{RUN}/predictions/maps/{{slide}}.json"),
    log:
        f"{RUN}/logs/score_new/{{slide}}.log",
    params:
        **provenance("score_new", "predict", "{slide}"),
        task=SETTINGS.task,
        settings=section("whole_slides"),
