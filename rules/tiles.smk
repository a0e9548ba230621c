# Slides to tiles, a job per slide.


rule tile:
    input:
        source=ancient(source(COHORT)),
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
        cutting=cutting_options(SETTINGS.tiles),
        # On a cluster several slides share a job; see profiles/slurm.
        slide_at_once=1,
    params:
        code=code("tile_slide"),
        note=note("tile", "{slide}"),
        content=content("tile", COHORT, f"{RUN}/tiles"),
        sample=sample_options(COHORT),
        settings=section("tiles"),
    shell:
        "python scripts/tile_slide.py --source {input.source:q} --slide {wildcards.slide}"
        " {params.sample} --settings {params.settings:q} --cores {threads}"
        " {resources.cutting} --records {output.records} --index {output.index}"
        " --state {output.state} --overview {output.overview} --mask {output.mask} > {log} 2>&1"
        " && python scripts/note_made.py --note {params.note} --outputs {output}"
        " --source {input.source:q} --state {output.state} >> {log} 2>&1"
