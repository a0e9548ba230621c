# From tiles to the embeddings of slides, and their scores by a model of embeddings.
from gigatile.workflow.resources import encoder_options


include: "tiles.smk"


# The slides of these splits, also those that fail.
TEST, VALID = (
    [] if BUNDLE else [row["slide"] for row in members_of(split)] for split in ("test", "valid")
)


# --- From tiles to embeddings: a job per slide


# A slide that could not be tiled gets empty embeddings and its reason. With encoder.embedded_with, the sheet names files
# of embeddings, which are read in place of the tiles.
rule embed:
    input:
        tiled=f"{RUN}/tiles/{{slide}}.json",
        tiles=ancient(f"{RUN}/tiles/{{slide}}.tfrecord"),
        source=ancient(embeddings_from(SETTINGS.encoder, COHORT)),
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
            *(SETTINGS.encoder, Path(f"{RUN}/embeddings"), ELSEWHERE),
            check=INVOCATION.is_main_process,
        ),
        settings=section("encoder"),
    shell:
        run_recorded(
            "embed",
            "--slide {wildcards.slide} --tiles {input.tiles:q} --tiled {input.tiled:q}"
            " --source {input.source:q} --settings {params.settings:q} {resources.options}"
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
        source=ancient(embeddings_from(SETTINGS.encoder, NEW)),
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
            *(SETTINGS.encoder, Path(f"{RUN}/predictions/embeddings"), ELSEWHERE),
            check=False,  # the same file
        ),
        settings=section("encoder"),


# --- Scores: one job for all slides of a split, because TensorFlow starts longer than a slide is scored


rule score_slides:
    input:
        table=ancient(f"{RUN}/splits.tsv"),
        embedded=[f"{RUN}/embeddings/{slide}.json" for slide in TEST],
        records=ancient([f"{RUN}/embeddings/{slide}.tfrecord" for slide in TEST]),
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        maps=update([f"{RUN}/evaluation/maps/{slide}.parquet" for slide in TEST]),
        states=update([f"{RUN}/evaluation/maps/{slide}.json" for slide in TEST]),
    log:
        f"{RUN}/logs/score_slides.log",
    benchmark:
        f"{RUN}/benchmarks/score_slides.tsv"
    conda:
        "../envs/gpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(60 + len(TEST) // 20),
    params:
        **provenance("score_slides", "predict", members=TEST),
        task=SETTINGS.task,
        slides="--split test",
        embeddings=folder("embeddings"),
        maps=folder("evaluation/maps"),
    shell:
        'python "$SCRIPTS/predict.py" --task {params.task} --table {input.table:q} {params.slides}'
        " --embeddings {params.embeddings:q} --model {input.model:q} --described {input.described:q} --cores {threads}"
        " --maps {params.maps:q} --records {params.record:q} --code {params.code:q} > {log:q} 2>&1"


# The scores of the validation split, on which thresholds are chosen. Nothing here depends on a test slide.
use rule score_slides as score_valid_slides with:
    input:
        table=ancient(f"{RUN}/splits.tsv"),
        embedded=[f"{RUN}/embeddings/{slide}.json" for slide in VALID],
        records=ancient([f"{RUN}/embeddings/{slide}.tfrecord" for slide in VALID]),
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        maps=update([f"{RUN}/validation/maps/{slide}.parquet" for slide in VALID]),
        states=update([f"{RUN}/validation/maps/{slide}.json" for slide in VALID]),
    log:
        f"{RUN}/logs/score_valid_slides.log",
    benchmark:
        f"{RUN}/benchmarks/score_valid_slides.tsv"
    resources:
        mem_mb=grow(4000),
        runtime=grow(60 + len(VALID) // 20),
    params:
        **provenance("score_valid_slides", "predict", members=VALID),
        task=SETTINGS.task,
        slides="--split valid",
        embeddings=folder("embeddings"),
        maps=folder("validation/maps"),


use rule score_slides as score_new_slides with:
    input:
        table=ancient(NEW_TABLE),
        embedded=expand(f"{RUN}/predictions/embeddings/{{slide}}.json", slide=NEW),
        records=ancient(expand(f"{RUN}/predictions/embeddings/{{slide}}.tfrecord", slide=NEW)),
        model=ancient(f"{MODEL}/model.keras"),
        described=f"{MODEL}/settings.json",
    output:
        maps=update(expand(f"{RUN}/predictions/maps/{{slide}}.parquet", slide=NEW)),
        states=update(expand(f"{RUN}/predictions/maps/{{slide}}.json", slide=NEW)),
    log:
        f"{RUN}/logs/score_new_slides.log",
    benchmark:
        f"{RUN}/benchmarks/score_new_slides.tsv"
    resources:
        mem_mb=grow(4000),
        runtime=grow(60 + len(NEW) // 20),
    params:
        **provenance("score_new_slides", "predict", members=list(NEW)),
        task=SETTINGS.task,
        slides="",
        embeddings=folder("predictions/embeddings"),
        maps=folder("predictions/maps"),
