# The model on the test cohort: a job segments each case, and the figures are of all of them.


# A case that could not be prepared has an empty segmentation, and goes on with its reason.
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
        code=code("predict"),
        intact=intact("segment"),
        note=note("segment", "{case}"),
        windows=section("windows"),
    shell:
        "python scripts/predict.py --task volume_segmentation --case {wildcards.case} --records {input.records:q}"
        " --model {input.model:q} --described {input.described:q} --windows {params.windows:q}"
        " --cores {threads} --out {output.segmentation:q} --state {output.state:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"


rule evaluate:
    input:
        samples=ancient(SETTINGS.samples),
        cases=ALL_TABLE,
        described=f"{RUN}/model/settings.json",
        segmented=[
            f"{RUN}/evaluation/segmentations/{row['case']}.json" for row in members_of("test")
        ],
        truths=ancient(truths_of("test")),
    output:
        cases=report(
            f"{RUN}/evaluation/cases.tsv",
            caption="captions/cases.rst",
            category="Evaluation",
            labels={"table": "figures of the test cases"},
        ),
        metrics=report(
            f"{RUN}/evaluation/metrics.json",
            caption="captions/case_metrics.rst",
            category="Evaluation",
            labels={"table": "means with their intervals"},
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
        code=code("evaluate"),
        intact=intact("evaluate"),
        note=note("evaluate"),
        segmentations=folder("evaluation/segmentations"),
        out=subpath(output.cases, parent=True),
        settings=section("evaluate"),
    shell:
        "python scripts/evaluate.py --task volume_segmentation --samples {input.samples:q} --table {input.cases:q}"
        " --segmentations {params.segmentations:q} --described {input.described:q}"
        " --settings {params.settings:q} --cores {threads} --out {params.out:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"
