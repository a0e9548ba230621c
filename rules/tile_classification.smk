# Classification of slides by their tiles.


rule demo_slide:
    output:
        "demo/slides/{slide}.svs",
    log:
        "demo/slides/{slide}.log",
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(10),
        slide_at_once=1,
    params:
        code=code("make_demo_slide"),
    shell:
        'python "$SCRIPTS/make_demo_slide.py" --slide {wildcards.slide} --out {output} > {log} 2>&1'


# --- From slides to tiles: a job per slide


rule tile:
    input:
        source=ancient(source_files(COHORT)),
    output:
        records=f"{RUN}/tiles/{{slide}}.tfrecord",
        state=f"{RUN}/tiles/{{slide}}.json",
        overview=f"{RUN}/tiles/{{slide}}.jpg",
        mask=f"{RUN}/tiles/{{slide}}.png",
        index=f"{RUN}/tiles/{{slide}}.parquet",
    log:
        f"{RUN}/logs/tile/{{slide}}.log",
    benchmark:
        f"{RUN}/benchmarks/tile/{{slide}}.tsv"
    conda:
        "../envs/cpu.yaml"
    threads: SETTINGS.tiles.cores
    resources:
        mem_mb=grow(1500 + 500 * SETTINGS.tiles.cores),
        runtime=grow(20),
        options=tiling_options(SETTINGS.tiles),
        # On a cluster, one job tiles several slides; see profiles/slurm.
        slide_at_once=1,
    params:
        **provenance("tile", "prepare", "{slide}", samples=COHORT, states=f"{RUN}/tiles"),
        sample=slide_options(COHORT),
        settings=section("tiles"),
    shell:
        recorded(
            'python "$SCRIPTS/prepare.py" --task tile_classification --source {input.source:q} --slide {wildcards.slide}'
            " {params.sample} --settings {params.settings:q} --cores {threads}"
            " {resources.options} --records {output.records} --index {output.index}"
            " --state {output.state} --overview {output.overview} --mask {output.mask}",
            source="{input.source:q}",
            state="{output.state}",
        )


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
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task tile_classification --table {input.slides:q} --records {params.records:q}'
            " --model {input.model:q} --described {input.described:q} --settings {params.settings:q}"
            " --out {params.out:q}"
        )


# --- Prediction for new slides, tiled in the same way as the cohort


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
            "tile_new", "prepare", "{slide}", samples=NEW, states=f"{RUN}/predictions/tiles"
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
            'python "$SCRIPTS/predict.py" --task tile_classification --table {input.slides:q} --records {params.records:q}'
            " --model {input.model:q} --described {input.described:q} --out {params.out:q}"
        )


# The files of the evaluation and of the prediction that the pages show.
EVALUATED, PREDICTED = rules.evaluate.output, rules.predict.output
