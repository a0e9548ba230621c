# Patients into cohorts. Only the sheet decides, so this needs no slide.


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
    # A division that cannot be used is told before days of tiling.
    priority: 100
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(10),
    params:
        code=code("split_patients"),
        intact=intact("split_patients"),
        note=note("split_patients"),
        sheet=sheet(SETTINGS.samples),
        task=SETTINGS.task,
        settings=section("split"),
    shell:
        "python scripts/split_patients.py --task {params.task} --samples {input.samples:q}"
        " --settings {params.settings:q} --table {output.table:q} --proof {output.proof:q}"
        " > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"
