# Patients to splits. This reads the sheet only.


rule split_patients:
    input:
        samples=ancient(SETTINGS.samples),
    output:
        table=f"{RUN}/splits.tsv",
        proof=f"{RUN}/splits.json",
    log:
        f"{RUN}/logs/split_patients.log",
    benchmark:
        f"{RUN}/benchmarks/split_patients.tsv"
    # Report unusable splits before days of tiling.
    priority: 100
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(10),
    params:
        **provenance("split_patients", "split_patients"),
        sheet=sheet(SETTINGS.samples),
        task=SETTINGS.task,
        settings=section("split"),
    shell:
        recorded(
            'python "$SCRIPTS/split_patients.py" --task {params.task} --samples {input.samples:q}'
            " --settings {params.settings:q} --table {output.table:q} --proof {output.proof:q}"
        )
