# NIfTI volumes to prepared cases, a job per case.


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
        # The largest volume, all of it head, takes 17 bytes per voxel, and 2.6 more for each further
        # modality; the largest record limits how many voxels several modalities can have.
        mem_mb=grow(5000 if len(SETTINGS.volumes.modalities) == 1 else 6500),
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
        " --source {input.source:q} --state {output.state} >> {log} 2>&1"
