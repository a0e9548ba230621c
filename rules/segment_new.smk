# New cases without a truth: prepared as the cohort was, segmented by its model.


use rule prepare as prepare_new with:
    input:
        source=ancient(source(NEW)),
    output:
        records=f"{RUN}/predictions/volumes/{{case}}.tfrecord",
        state=f"{RUN}/predictions/volumes/{{case}}.json",
    log:
        f"{RUN}/logs/prepare_new/{{case}}.log",
    benchmark:
        f"{RUN}/benchmarks/prepare_new/{{case}}.tsv"
    params:
        code=code("prepare_case"),
        note=note("prepare_new", "{case}"),
        content=content("prepare_new", NEW, f"{RUN}/predictions/volumes"),
        case=case_options(NEW),
        settings=section("volumes"),


use rule segment as segment_new with:
    input:
        state=f"{RUN}/predictions/volumes/{{case}}.json",
        records=ancient(f"{RUN}/predictions/volumes/{{case}}.tfrecord"),
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        segmentation=f"{RUN}/predictions/segmentations/{{case}}.nii.gz",
        state=f"{RUN}/predictions/segmentations/{{case}}.json",
    log:
        f"{RUN}/logs/segment_new/{{case}}.log",
    benchmark:
        f"{RUN}/benchmarks/segment_new/{{case}}.tsv"
    params:
        code=code("predict"),
        intact=intact("segment_new"),
        note=note("segment_new", "{case}"),
        windows=section("windows"),


rule prediction_pages:
    input:
        cases=NEW_TABLE,
        cohort=ALL_TABLE,
        states=NEW_STATES,
        segmented=expand(f"{RUN}/predictions/segmentations/{{case}}.json", case=NEW),
        model=small(rules.choose_model.output),
        large=large(rules.choose_model.output),
    output:
        index=report(
            f"{RUN}/predictions/pages/index.html",
            caption="captions/case_predictions.rst",
            category="Predictions",
            labels={"page": "the new cases"},
        ),
        pages=directory(f"{RUN}/predictions/pages/cases"),
        matches=f"{RUN}/predictions/in_cohort.tsv",
    log:
        f"{RUN}/logs/prediction_pages.log",
    benchmark:
        f"{RUN}/benchmarks/prediction_pages.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(240),
    params:
        code=code("write_prediction_pages"),
        intact=intact("prediction_pages"),
        note=note("prediction_pages"),
        run=folder(),
        pages=subpath(output.index, parent=True),
    shell:
        "python scripts/write_prediction_pages.py --task volume_segmentation --run-dir {params.run:q}"
        " --cohort {params.run:q} --matches {output.matches:q}"
        " --out {params.pages:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"
