# From tiles to the embeddings of slides, and their scores by a model of embeddings.
from gigatile.workflow.resources import encoder_options


include: "tiles.smk"


# --- From tiles to embeddings: a job per slide


# A slide that could not be tiled gets empty embeddings and its reason.
rule embed:
    input:
        tiled=f"{RUN}/tiles/{{slide}}.json",
        tiles=ancient(f"{RUN}/tiles/{{slide}}.tfrecord"),
        encoder=ancient(on_disk([Path(SETTINGS.encoder.file)])),
        described=[],
    output:
        records=update(f"{RUN}/embeddings/{{slide}}.tfrecord"),
        hdf5=update(f"{RUN}/embeddings/{{slide}}.h5"),
        state=update(f"{RUN}/embeddings/{{slide}}.json"),
    log:
        f"{RUN}/logs/embed/{{slide}}.log",
    conda:
        "../envs/gpu.yaml"
    threads: SETTINGS.encoder.cores
    resources:
        mem_mb=grow(4000),
        runtime=grow(240),
        options=encoder_options(SETTINGS.encoder),
        reuse=reuse_option(SETTINGS.reuse),
        slide_at_once=1,
    params:
        **provenance("embed", "embed", "{slide}"),
        encoder=encoder_of(
            *(SETTINGS.encoder.file, Path(f"{RUN}/embeddings"), ELSEWHERE),
            check=INVOCATION.is_main_process,
        ),
        settings=section("encoder"),
    shell:
        run_recorded(
            "embed",
            "--slide {wildcards.slide} --tiles {input.tiles:q} --tiled {input.tiled:q}"
            " --encoder {input.encoder:q} --settings {params.settings:q} {resources.options}"
            " --described {input.described:q} --cores {threads} --records {output.records:q} --hdf5 {output.hdf5:q} --out {output.state:q}",
            reads="{input.tiled:q} {input.described:q}",
            state="{output.state}",
            made_with="{params.code} {params.settings:q} {params.encoder}",
            options="{resources.reuse}",
        )


use rule embed as embed_new with:
    input:
        tiled=f"{RUN}/predictions/tiles/{{slide}}.json",
        tiles=ancient(f"{RUN}/predictions/tiles/{{slide}}.tfrecord"),
        encoder=ancient(on_disk([Path(SETTINGS.encoder.file)])),
        # A bundle refuses another encoder before the first slide is embedded.
        described=f"{MODEL}/settings.json" if BUNDLE else [],
    output:
        records=update(f"{RUN}/predictions/embeddings/{{slide}}.tfrecord"),
        hdf5=update(f"{RUN}/predictions/embeddings/{{slide}}.h5"),
        state=update(f"{RUN}/predictions/embeddings/{{slide}}.json"),
    log:
        f"{RUN}/logs/embed_new/{{slide}}.log",
    params:
        **provenance("embed_new", "embed", "{slide}"),
        encoder=encoder_of(
            *(SETTINGS.encoder.file, Path(f"{RUN}/predictions/embeddings"), ELSEWHERE),
            check=False,  # the same file
        ),
        settings=section("encoder"),


# --- Evaluation of the model on the test split: a job scores each slide, another collects all of them


rule score:
    input:
        embedded=f"{RUN}/embeddings/{{slide}}.json",
        records=ancient(f"{RUN}/embeddings/{{slide}}.tfrecord"),
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
        mem_mb=grow(4000),
        runtime=grow(60),
        slide_at_once=1,
    params:
        **provenance("score", "predict", "{slide}"),
        task=SETTINGS.task,
    shell:
        run_recorded(
            "predict",
            "--task {params.task} --slide {wildcards.slide} --records {input.records:q}"
            " --embedded {input.embedded:q} --model {input.model:q} --described {input.described:q}"
            " --cores {threads} --map {output.map:q} --out {output.state:q}",
            reads="{input.embedded:q} {input.model:q} {input.described:q}",
            state="{output.state}",
            made_with="{params.code}",
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


# --- Prediction for new slides: a job per slide


use rule score as score_new with:
    input:
        embedded=f"{RUN}/predictions/embeddings/{{slide}}.json",
        records=ancient(f"{RUN}/predictions/embeddings/{{slide}}.tfrecord"),
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
