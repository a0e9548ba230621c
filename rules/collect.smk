# Tables of the states of all slides or cases.


# The tables depend on their rows of the sheet, not on the whole sheet: a new column, or a slide of another
# split, does not run these rules again.
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
        **provenance("collect", "collect_states"),
        states=folder(RECORDS),
        rows=rows_of(*SPLITS),
        task=SETTINGS.task,
        settings=section("split"),
        splits=SPLITS,
        parts=PARTS_OPTION,
        checksums=["--checksums", ALL_STATES],
        pack=packed(),
    shell:
        recorded(
            'python "$SCRIPTS/collect_states.py" --task {params.task} --samples {input.samples:q} --settings {params.settings:q}'
            " --of {params.splits} --rows {params.rows} --states {params.states:q} {params.parts} --out {output.table:q} {params.checksums:q} {params.pack:q}"
        )


# Training has a separate table, without pictures and quality measures: changes of test slides or pictures
# must not start training again.
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
        **provenance("collect_training", "collect_states"),
        states=folder(RECORDS),
        rows=rows_of("train", "valid"),
        task=SETTINGS.task,
        settings=section("split"),
        splits=("train", "valid"),
        parts=PARTS_OPTION,
        checksums=[],
        pack=[],


rule collect_new:
    input:
        samples=ancient(SETTINGS.predict.samples or []),
        states=expand(f"{RUN}/predictions/{RECORDS}/{{name}}.json", name=record_names(NEW_ROWS)),
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
        **provenance("collect_new", "collect_states"),
        task=SETTINGS.task,
        rows=rows_of_new(),
        states=folder(f"predictions/{RECORDS}"),
        parts=PARTS_OPTION,
        pack=packed("_new"),
    shell:
        recorded(
            'python "$SCRIPTS/collect_states.py" --task {params.task} --new {input.samples:q} --states {params.states:q}'
            " {params.parts} --out {output.table:q} --checksums {output.states:q} {params.pack:q}"
        )
