# Slides to tiles, a job per slide; then one table of what became of each.


rule tile:
    input:
        source=lambda wildcards: os.path.normpath(COHORT[wildcards.slide].path),
    output:
        records=f"{RUN}/tiles/{{slide}}.tfrecord",
        state=f"{RUN}/tiles/{{slide}}.json",
        overview=f"{RUN}/tiles/{{slide}}.jpg",
    log:
        f"{RUN}/logs/tile/{{slide}}.log",
    benchmark:
        f"{RUN}/benchmarks/tile/{{slide}}.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(2000),
        runtime=grow(20),
        # On a cluster several slides share a job; see profiles/slurm.
        slide_at_once=1,
    params:
        code=code("tile_slide"),
        sample=lambda wildcards: sample_options(COHORT[wildcards.slide]),
        settings=section("tiles"),
    shell:
        "python scripts/tile_slide.py --source {input.source:q} --slide {wildcards.slide}"
        " {params.sample} --settings {params.settings:q} --records {output.records:q}"
        " --state {output.state:q} --overview {output.overview:q} > {log:q} 2>&1"


rule collect_tiles:
    input:
        splits=f"{RUN}/splits.tsv",
        states=expand(f"{RUN}/tiles/{{slide}}.json", slide=COHORT),
    output:
        table=f"{RUN}/tiles.tsv",
    log:
        f"{RUN}/logs/collect_tiles.log",
    benchmark:
        f"{RUN}/benchmarks/collect_tiles.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(60),
    params:
        code=code("collect_tiles"),
        states=folder("tiles"),
    shell:
        "python scripts/collect_tiles.py --splits {input.splits:q} --states {params.states:q}"
        " --out {output.table:q} > {log:q} 2>&1"
