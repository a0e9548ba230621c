# Prediction for new slides, tiled in the same way as the cohort.


use rule tile as tile_new with:
    input:
        source=ancient(source_files(NEW)),
    output:
        records=f"{RUN}/predictions/tiles/{{slide}}.tfrecord",
        state=f"{RUN}/predictions/tiles/{{slide}}.json",
        overview=f"{RUN}/predictions/tiles/{{slide}}.jpg",
        mask=f"{RUN}/predictions/tiles/{{slide}}.png",
        index=f"{RUN}/predictions/tiles/{{slide}}.parquet",
    log:
        f"{RUN}/logs/tile_new/{{slide}}.log",
    benchmark:
        f"{RUN}/benchmarks/tile_new/{{slide}}.tsv"
    params:
        **provenance(
            "tile_new", "tile_slide", "{slide}", samples=NEW, states=f"{RUN}/predictions/tiles"
        ),
        sample=slide_options(NEW),
        settings=section("tiles"),


rule predict:
    input:
        slides=NEW_TABLE,
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
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
            "python scripts/predict.py --task tile_classification --table {input.slides:q} --records {params.records:q}"
            " --model {input.model:q} --described {input.described:q} --out {params.out:q}"
        )


rule prediction_pages:
    input:
        slides=NEW_TABLE,
        cohort=ALL_TABLE,
        states=NEW_STATES,
        predictions=small_files(rules.predict.output),
        model=small_files(rules.choose_model.output),
        large=large_files(rules.predict.output, rules.choose_model.output),
    output:
        index=report(
            f"{RUN}/predictions/pages/index.html",
            caption="captions/predictions.rst",
            category="Predictions",
            labels={"page": "the new slides"},
        ),
        pages=directory(f"{RUN}/predictions/pages/slides"),
        matches=f"{RUN}/predictions/in_cohort.tsv",
    log:
        f"{RUN}/logs/prediction_pages.log",
    benchmark:
        f"{RUN}/benchmarks/prediction_pages.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(2000),
        runtime=grow(240),
    params:
        **provenance("prediction_pages", "write_prediction_pages"),
        task=SETTINGS.task,
        run=folder(),
        pages=subpath(output.index, parent=True),
    shell:
        recorded(
            "python scripts/write_prediction_pages.py --task {params.task} --run-dir {params.run:q} --cohort {params.run:q}"
            " --matches {output.matches:q} --out {params.pages:q}"
        )
