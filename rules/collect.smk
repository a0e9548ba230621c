# What became of each slide or case, gathered into tables.


# They depend on what the sheet says of their rows, and not on the sheet: a new site, or a slide of another
# split, makes none of them again.
rule collect:
    input:
        samples=ancient(SETTINGS.samples),
        states=states_of(*SPLITS),
    output:
        table=ALL_TABLE,
        states=ALL_STATES,
    log:
        f"{RUN}/logs/collect.log",
    benchmark:
        f"{RUN}/benchmarks/collect.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(60),
    params:
        code=code("collect_states"),
        intact=intact("collect"),
        note=note("collect"),
        states=folder(RECORDS),
        rows=rows_of(*SPLITS),
        task=SETTINGS.task,
        settings=section("split"),
        of=SPLITS,
        checksums=["--checksums", ALL_STATES],
    shell:
        "python scripts/collect_states.py --task {params.task} --samples {input.samples:q} --settings {params.settings:q}"
        " --of {params.of} --rows {params.rows} --states {params.states:q} --out {output.table:q} {params.checksums:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"


# The slides for training have a table of their own, without pictures and measures: a change of a
# test slide or of a picture must not start training again.
use rule collect as collect_training with:
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
        states=folder(RECORDS),
        rows=rows_of("train", "valid"),
        task=SETTINGS.task,
        settings=section("split"),
        of=("train", "valid"),
        checksums=[],


rule collect_new:
    input:
        samples=ancient(SETTINGS.predict.samples or []),
        states=expand(f"{RUN}/predictions/{RECORDS}/{{one}}.json", one=NEW),
    output:
        table=NEW_TABLE,
        states=NEW_STATES,
    log:
        f"{RUN}/logs/collect_new.log",
    benchmark:
        f"{RUN}/benchmarks/collect_new.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(60),
    params:
        code=code("collect_states"),
        intact=intact("collect_new"),
        note=note("collect_new"),
        task=SETTINGS.task,
        sheet=sheet(SETTINGS.predict.samples),
        states=folder(f"predictions/{RECORDS}"),
    shell:
        "python scripts/collect_states.py --task {params.task} --new {input.samples:q} --states {params.states:q}"
        " --out {output.table:q} --checksums {output.states:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"
