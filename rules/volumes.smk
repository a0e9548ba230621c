# NIfTI volumes to prepared cases, a job per case; then tables of what became of each.


rule prepare:
    input:
        source=ancient(source(COHORT)),
    output:
        records=f"{RUN}/volumes/{{case}}.tfrecord",
        state=f"{RUN}/volumes/{{case}}.json",
    log:
        f"{RUN}/logs/prepare/{{case}}.log",
    benchmark:
        f"{RUN}/benchmarks/prepare/{{case}}.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(20),
        # On a cluster several cases share a job; see profiles/slurm.
        slide_at_once=1,
        patience=f"--stall-minutes {SETTINGS.volumes.stall_minutes:g}",
    params:
        code=code("prepare_case"),
        note=note("prepare", "{case}"),
        content=content("prepare", COHORT, f"{RUN}/volumes"),
        case=case_options(COHORT),
        settings=section("volumes"),
    shell:
        "python scripts/prepare_case.py --case {wildcards.case} {params.case}"
        " --settings {params.settings:q} {resources.patience} --records {output.records} --state {output.state}"
        " > {log} 2>&1"
        " && python scripts/note_made.py --note {params.note} --outputs {output}"
        " --source {input.source:q} >> {log} 2>&1"


# As of tiles, the tables depend on what the sheet says of their cases, and not on the sheet.
rule collect_cases:
    input:
        samples=ancient(SETTINGS.samples),
        states=states_of(*SPLITS),
    output:
        table=ALL_TABLE,
    log:
        f"{RUN}/logs/collect_cases.log",
    benchmark:
        f"{RUN}/benchmarks/collect_cases.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(60),
    params:
        code=code("collect_states"),
        intact=intact("collect_cases"),
        note=note("collect_cases"),
        states=folder("volumes"),
        rows=rows_of(*SPLITS),
        settings=section("split"),
        of=SPLITS,
    shell:
        "python scripts/collect_states.py --samples {input.samples:q} --settings {params.settings:q}"
        " --of {params.of} --rows {params.rows} --states {params.states:q} --out {output.table:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"


use rule collect_cases as collect_training with:
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
        states=folder("volumes"),
        rows=rows_of("train", "valid"),
        settings=section("split"),
        of=("train", "valid"),
