# Evaluation of the model on the test split: a job segments each case, another one computes the metrics.


# A case that could not be prepared gets an empty segmentation and keeps its reason.
rule segment:
    input:
        state=f"{RUN}/volumes/{{case}}.json",
        records=ancient(f"{RUN}/volumes/{{case}}.tfrecord"),
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        segmentation=f"{RUN}/evaluation/segmentations/{{case}}.nii.gz",
        state=f"{RUN}/evaluation/segmentations/{{case}}.json",
    log:
        f"{RUN}/logs/segment/{{case}}.log",
    benchmark:
        f"{RUN}/benchmarks/segment/{{case}}.tsv"
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
        recorded(
            "python scripts/predict.py --task volume_segmentation --case {wildcards.case} --records {input.records:q}"
            " --model {input.model:q} --described {input.described:q} --windows {params.windows:q}"
            " --cores {threads} --out {output.segmentation:q} --state {output.state:q}"
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
            "python scripts/evaluate.py --task volume_segmentation --samples {input.samples:q} --table {input.cases:q}"
            " --segmentations {params.segmentations:q} --described {input.described:q}"
            " --settings {params.settings:q} --cores {threads} --out {params.out:q}"
        )
