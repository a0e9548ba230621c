# From slides to tiles: a job per slide.


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
        **provenance("tile", "tile_slide", "{slide}", samples=COHORT, states=f"{RUN}/tiles"),
        sample=slide_options(COHORT),
        settings=section("tiles"),
    shell:
        recorded(
            "python scripts/tile_slide.py --source {input.source:q} --slide {wildcards.slide}"
            " {params.sample} --settings {params.settings:q} --cores {threads}"
            " {resources.options} --records {output.records} --index {output.index}"
            " --state {output.state} --overview {output.overview} --mask {output.mask}",
            source="{input.source:q}",
            state="{output.state}",
        )
