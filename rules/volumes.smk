# From NIfTI volumes to prepared cases: a job per case.


rule prepare:
    input:
        source=ancient(source_files(COHORT)),
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
        # The largest volume without background takes 17 bytes per voxel, and 2.6 for each further modality.
        # The maximum size of a record limits the voxels of all modalities together.
        mem_mb=grow(5000 if len(SETTINGS.volumes.modalities) == 1 else 6500),
        runtime=grow(20),
        # On a cluster, one job prepares several cases; see profiles/slurm.
        slide_at_once=1,
        options=f"--stall-minutes {SETTINGS.volumes.stall_minutes:g}",
    params:
        **provenance("prepare", "prepare_case", "{case}", samples=COHORT, states=f"{RUN}/volumes"),
        case=case_options(COHORT),
        settings=section("volumes"),
    shell:
        recorded(
            "python scripts/prepare_case.py --case {wildcards.case} {params.case}"
            " --settings {params.settings:q} {resources.options} --records {output.records} --state {output.state}",
            source="{input.source:q}",
            state="{output.state}",
        )
