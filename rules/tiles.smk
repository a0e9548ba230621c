# From slides to tiles, for all tasks with slides: a job per slide.
from gigatile.workflow.size_requests import SizeRequests, Work

# Tiles are the same for all tasks, so that runs of different tasks can reuse them. Files of embeddings have none.
TILING = "slide_embedding" if SETTINGS.encoder.embedded_with else "tile_classification"
REQUESTS = SizeRequests(
    INVOCATION,
    Path("results"),
    Work(
        rules=("tile", "tile_new"),
        folder="tiles",
        seconds_per_mb=0.3,
        mem_mb=1500 + 500 * SETTINGS.tiles.cores,
        mb_in_store=1000,
        stall_minutes=SETTINGS.tiles.stall_minutes,
    ),
)


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


rule tile:
    input:
        source=ancient(source_files(COHORT)),
    # Not deleted before the job: it keeps them if they are already those that it would make.
    output:
        records=update(f"{RUN}/tiles/{{slide}}.tfrecord"),
        state=update(f"{RUN}/tiles/{{slide}}.json"),
        overview=update(f"{RUN}/tiles/{{slide}}.jpg"),
        index=update(f"{RUN}/tiles/{{slide}}.parquet"),
    log:
        f"{RUN}/logs/tile/{{slide}}.log",
    conda:
        "../envs/cpu.yaml"
    threads: SETTINGS.tiles.cores
    resources:
        mem_mb=REQUESTS.mem_mb(),
        runtime=REQUESTS.minutes(COHORT, NEW),
        options=tiling_options(SETTINGS.tiles),
        reuse=reuse_option(SETTINGS.reuse),
        # On a cluster, one job tiles several slides; see profiles/slurm.
        slide_at_once=1,
    params:
        **provenance(
            "tile", "prepare", "{slide}", samples=COHORT, states=f"{RUN}/tiles", task=TILING
        ),
        task=TILING,
        source=source_text(COHORT),
        sample=slide_options(COHORT),
        settings=section("tiles"),
    shell:
        run_recorded(
            "prepare",
            "--task {params.task} --source {params.source} --slide {wildcards.slide}"
            " {params.sample} --settings {params.settings:q} --cores {threads}"
            " {resources.options} --records {output.records} --index {output.index}"
            " --state {output.state} --overview {output.overview}",
            source="{params.source}",
            state="{output.state}",
            made_with="{params.code} {params.settings:q} {params.sample:q}",
            options="{resources.reuse}",
        )


# New slides are tiled in the same way as the cohort.
use rule tile as tile_new with:
    input:
        source=ancient(source_files(NEW)),
    output:
        records=update(f"{RUN}/predictions/tiles/{{slide}}.tfrecord"),
        state=update(f"{RUN}/predictions/tiles/{{slide}}.json"),
        overview=update(f"{RUN}/predictions/tiles/{{slide}}.jpg"),
        index=update(f"{RUN}/predictions/tiles/{{slide}}.parquet"),
    log:
        f"{RUN}/logs/tile_new/{{slide}}.log",
    params:
        **provenance(
            "tile_new",
            "prepare",
            "{slide}",
            samples=NEW,
            states=f"{RUN}/predictions/tiles",
            task=TILING,
        ),
        task=TILING,
        source=source_text(NEW),
        sample=slide_options(NEW),
        settings=section("tiles"),
