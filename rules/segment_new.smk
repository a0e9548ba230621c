# Segmentation of new cases, prepared in the same way as the cohort.


use rule prepare as prepare_new with:
    input:
        source=ancient(source_files(NEW)),
    output:
        records=f"{RUN}/predictions/volumes/{{case}}.tfrecord",
        state=f"{RUN}/predictions/volumes/{{case}}.json",
    log:
        f"{RUN}/logs/prepare_new/{{case}}.log",
    benchmark:
        f"{RUN}/benchmarks/prepare_new/{{case}}.tsv"
    params:
        **provenance(
            "prepare_new",
            "prepare_case",
            "{case}",
            samples=NEW,
            states=f"{RUN}/predictions/volumes",
        ),
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
        **provenance("segment_new", "predict", "{case}"),
        windows=section("windows"),


rule prediction_pages:
    input:
        cases=NEW_TABLE,
        cohort=ALL_TABLE,
        states=NEW_STATES,
        segmented=expand(f"{RUN}/predictions/segmentations/{{case}}.json", case=NEW),
        model=small_files(rules.choose_model.output),
        large=large_files(rules.choose_model.output),
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
        **provenance("prediction_pages", "write_prediction_pages"),
        task=SETTINGS.task,
        run=folder(),
        pages=subpath(output.index, parent=True),
    shell:
        recorded(
            "python scripts/write_prediction_pages.py --task {params.task} --run-dir {params.run:q}"
            " --cohort {params.run:q} --matches {output.matches:q}"
            " --out {params.pages:q}"
        )
