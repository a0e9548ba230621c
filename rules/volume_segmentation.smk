# Segmentation of volumes.
from gigatile.workflow.inputs import not_compared
from gigatile.workflow.size_requests import SizeRequests, Work

REQUESTS = SizeRequests(
    INVOCATION,
    Path("results"),
    Work(
        rules=("prepare", "prepare_new"),
        folder="volumes",
        seconds_per_mb=2,
        # The largest volume without background takes 17 bytes per voxel, and 2.6 for each further modality.
        # The maximum size of a record limits the voxels of all modalities together.
        mem_mb=5000 if len(SETTINGS.volumes.modalities) == 1 else 6500,
        mb_in_store=25,
        stall_minutes=SETTINGS.volumes.stall_minutes,
    ),
)


rule demo_case:
    output:
        expand(
            "demo/volumes/{{case}}/{volume}.nii.gz",
            volume=["flair", "t1", "t1gd", "t2", "segmentation"],
        ),
    log:
        "demo/volumes/{case}.log",
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(10),
        slide_at_once=1,
    params:
        code=code("make_demo_volume"),
        volumes=subpath(output[0], parent=True),
    shell:
        'python "$SCRIPTS/make_demo_volume.py" --case {wildcards.case} --out {params.volumes} > {log} 2>&1'


# --- From NIfTI volumes to prepared cases: a job per case


rule prepare:
    input:
        source=ancient(source_files(COHORT)),
    # Not deleted before the job: it keeps them if they are already those that it would make.
    output:
        records=update(f"{RUN}/volumes/{{case}}.tfrecord"),
        state=update(f"{RUN}/volumes/{{case}}.json"),
    log:
        f"{RUN}/logs/prepare/{{case}}.log",
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=REQUESTS.mem_mb(),
        runtime=REQUESTS.minutes(COHORT, NEW),
        # On a cluster, one job prepares several cases; see profiles/slurm.
        slide_at_once=1,
        options=f"--stall-minutes {SETTINGS.volumes.stall_minutes:g}",
        reuse=reuse_option(SETTINGS.reuse),
    params:
        **provenance("prepare", "prepare", "{case}", samples=COHORT, states=f"{RUN}/volumes"),
        sources=source_texts(COHORT),
        case=case_options(COHORT),
        settings=section("volumes"),
    shell:
        run_recorded(
            "prepare",
            "--task volume_segmentation --case {wildcards.case} {params.case} --settings {params.settings:q}"
            " {resources.options} --records {output.records} --state {output.state}",
            source="{params.sources}",
            state="{output.state}",
            made_with="{params.code} {params.settings:q} {params.case:q}",
            options="{resources.reuse}",
        )


# --- Evaluation of the model on the test split: a job segments each case, another scores all of them


# A case that could not be prepared gets an empty segmentation and keeps its reason.
rule segment:
    input:
        state=f"{RUN}/volumes/{{case}}.json",
        records=ancient(f"{RUN}/volumes/{{case}}.tfrecord"),
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        segmentation=update(f"{RUN}/evaluation/segmentations/{{case}}.nii.gz"),
        state=update(f"{RUN}/evaluation/segmentations/{{case}}.json"),
    log:
        f"{RUN}/logs/segment/{{case}}.log",
    conda:
        "../envs/gpu.yaml"
    resources:
        mem_mb=grow(6000),
        runtime=grow(60),
        slide_at_once=1,
    params:
        **provenance("segment", "predict", "{case}"),
        windows=section("windows"),
    shell:
        run_recorded(
            "predict",
            "--task volume_segmentation --case {wildcards.case} --records {input.records:q}"
            " --model {input.model:q} --described {input.described:q} --windows {params.windows:q}"
            " --cores {threads} --out {output.segmentation:q} --state {output.state:q}",
            reads="{input.state:q} {input.model:q} {input.described:q}",
            state="{output.state}",
            made_with="{params.code} {params.windows:q}",
        )


rule evaluate:
    input:
        samples=ancient(SETTINGS.samples),
        cases=ALL_TABLE,
        described=f"{RUN}/model/settings.json",
        segmented=[
            f"{RUN}/evaluation/segmentations/{row['case']}.json" for row in members_of("test")
        ],
        references=ancient(segmentations_of("test")),
    output:
        cases=report(
            f"{RUN}/evaluation/cases.tsv",
            caption="captions/cases.rst",
            category="Evaluation",
            labels={"table": "metrics of the test cases"},
        ),
        metrics=report(
            f"{RUN}/evaluation/metrics.json",
            caption="captions/case_metrics.rst",
            category="Evaluation",
            labels={"table": "means with confidence intervals"},
        ),
    log:
        f"{RUN}/logs/evaluate.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate.tsv"
    conda:
        "../envs/cpu.yaml"
    threads: 4
    resources:
        mem_mb=grow(4000),
        runtime=grow(240),
    params:
        **provenance("evaluate", "evaluate"),
        segmentations=folder("evaluation/segmentations"),
        out=subpath(output.cases, parent=True),
        settings=section("evaluate"),
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task volume_segmentation --samples {input.samples:q} --table {input.cases:q}'
            " --segmentations {params.segmentations:q} --described {input.described:q}"
            " --settings {params.settings:q} --cores {threads} --out {params.out:q}"
        )


# --- Segmentation of new cases, prepared in the same way as the cohort


use rule prepare as prepare_new with:
    input:
        source=ancient(source_files(NEW)),
    output:
        records=update(f"{RUN}/predictions/volumes/{{case}}.tfrecord"),
        state=update(f"{RUN}/predictions/volumes/{{case}}.json"),
    log:
        f"{RUN}/logs/prepare_new/{{case}}.log",
    params:
        **provenance(
            "prepare_new",
            "prepare",
            "{case}",
            samples=NEW,
            states=f"{RUN}/predictions/volumes",
        ),
        sources=source_texts(NEW),
        case=case_options(NEW),
        settings=section("volumes"),


use rule segment as segment_new with:
    input:
        state=f"{RUN}/predictions/volumes/{{case}}.json",
        records=ancient(f"{RUN}/predictions/volumes/{{case}}.tfrecord"),
        model=ancient(f"{MODEL}/model.keras"),
        described=f"{MODEL}/settings.json",
    output:
        segmentation=update(f"{RUN}/predictions/segmentations/{{case}}.nii.gz"),
        state=update(f"{RUN}/predictions/segmentations/{{case}}.json"),
    log:
        f"{RUN}/logs/segment_new/{{case}}.log",
    params:
        **provenance("segment_new", "predict", "{case}"),
        windows=section("windows"),


# --- External validation: new cases with reference segmentations


if EXTERNAL:
    # The figures of the model on its test split, of this run or in the bundle.
    TEST_METRICS = f"{MODEL}/metrics.json" if BUNDLE else f"{RUN}/evaluation/metrics.json"

    rule external:
        input:
            metrics=TEST_METRICS,
            described=f"{MODEL}/settings.json",
            table=NEW_TABLE,
            segmented=expand(f"{RUN}/predictions/segmentations/{{case}}.json", case=NEW),
            references=ancient(on_disk(REFERENCES.values())),
            matches=f"{RUN}/predictions/in_cohort.tsv",
            samples=ancient(SETTINGS.predict.samples),
        output:
            cases=f"{RUN}/predictions/external/cases.tsv",
            metrics=f"{RUN}/predictions/external/metrics.json",
        log:
            f"{RUN}/logs/external.log",
        benchmark:
            f"{RUN}/benchmarks/external.tsv"
        conda:
            "../envs/cpu.yaml"
        threads: 4
        resources:
            mem_mb=grow(4000),
            runtime=grow(240),
        params:
            **provenance("external", "evaluate_external", sources=list(REFERENCES.values())),
            sheet=sheet(SETTINGS.predict.samples),
            settings=section("evaluate"),
            compared=not_compared(RUN, ALL_TABLE, BUNDLE),
            segmentations=folder("predictions/segmentations"),
        shell:
            recorded(
                'python "$SCRIPTS/evaluate_external.py" --task volume_segmentation --table {input.table:q}'
                " --segmentations {params.segmentations:q} --samples {input.samples:q} --matches {input.matches:q}"
                " {params.compared} --described {input.described:q} --metrics {input.metrics:q}"
                " --settings {params.settings:q} --cores {threads} --out {output.metrics:q}",
                sheet="{input.samples:q}",
                column="segmentation",
            )

    rule external_page:
        input:
            external=f"{RUN}/predictions/external/metrics.json",
            cases=f"{RUN}/predictions/external/cases.tsv",
            metrics=TEST_METRICS,
            described=f"{MODEL}/settings.json",
        output:
            page=report(
                f"{RUN}/predictions/external/index.html",
                caption="captions/external.rst",
                category="Predictions",
                labels={"page": "external validation"},
            ),
        log:
            f"{RUN}/logs/external_page.log",
        benchmark:
            f"{RUN}/benchmarks/external_page.tsv"
        conda:
            "../envs/cpu.yaml"
        resources:
            mem_mb=grow(2000),
            runtime=grow(30),
        params:
            **provenance("external_page", "write_external_page"),
            title=literal(shlex.quote(f"External validation of {SETTINGS.run}")),
        shell:
            recorded(
                'python "$SCRIPTS/write_external_page.py" --task volume_segmentation --external {input.external:q}'
                " --cases {input.cases:q} --metrics {input.metrics:q} --described {input.described:q}"
                " --title {params.title} --out {output.page:q}"
            )


# The files of the evaluation and of the prediction that the pages show.
EVALUATED = [*rules.evaluate.output, *rules.evaluate.input.segmented]
PREDICTED = expand(f"{RUN}/predictions/segmentations/{{case}}.json", case=NEW)
