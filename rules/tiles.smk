# Slides to tiles, a job per slide; then tables of what became of each.


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
        " --source {input.source:q} >> {log} 2>&1"


# The tables depend on what the sheet says of their slides, and not on the sheet: a new site, or a slide
# of another split, makes none of them again.
rule collect_tiles:
    input:
        samples=ancient(SETTINGS.samples),
        states=states_of(*SPLITS),
    output:
        table=ALL_TABLE,
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
        code=code("collect_states"),
        intact=intact("collect_tiles"),
        note=note("collect_tiles"),
        states=folder("tiles"),
        rows=rows_of(*SPLITS),
        settings=section("split"),
        of=SPLITS,
    shell:
        "python scripts/collect_states.py --samples {input.samples:q} --settings {params.settings:q}"
        " --of {params.of} --rows {params.rows} --states {params.states:q} --out {output.table:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"


# What is learnt from, in a table of its own: what becomes of test slides trains nothing again.
use rule collect_tiles as collect_training with:
    input:
        samples=ancient(SETTINGS.samples),
        states=states_of("train", "valid"),
    output:
        table=TRAINING_TABLE,
    log:
        f"{RUN}/logs/collect_training.log",
    benchmark:
        f"{RUN}/benchmarks/collect_training.tsv"
    params:
        code=code("collect_states"),
        intact=intact("collect_training"),
        note=note("collect_training"),
        states=folder("tiles"),
        rows=rows_of("train", "valid"),
        settings=section("split"),
        of=("train", "valid"),
