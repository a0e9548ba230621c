# Segmentation of instances.
from gigatile.cohort.images import parts_of
from gigatile.demo.images import COHORT as DEMO_COHORT
from gigatile.demo.images import NEW as DEMO_NEW
from gigatile.workflow.inputs import not_compared
from gigatile.workflow.size_requests import SizeRequests, Work

DEMO_FIELDS = [field.image for field in (*DEMO_COHORT, *DEMO_NEW)]
# The images of each job that prepares them.
COHORT_PARTS = parts_of(list(COHORT.values()), PARTS, SETTINGS.split)
NEW_PARTS = parts_of(list(NEW.values()), PARTS)
REQUESTS = SizeRequests(
    INVOCATION,
    Path("results"),
    Work(
        rules=("prepare", "prepare_new"),
        folder="images",
        seconds_per_mb=0.5,
        mem_mb=4000,
        mb_in_store=10,
        stall_minutes=SETTINGS.instances.stall_minutes,
    ),
)


wildcard_constraints:
    part=r"(train|valid|test|new)-\d{4}",


rule demo_images:
    output:
        [f"demo/images/{field}{ending}.png" for field in DEMO_FIELDS for ending in ("", "-labels")],
    log:
        "demo/images/images.log",
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(10),
    params:
        code=code("make_demo_images"),
        demo=subpath(output[0], ancestor=2),
    shell:
        'python "$SCRIPTS/make_demo_images.py" --out {params.demo} > {log} 2>&1'


# --- From images and annotations to records: a job per part


rule prepare:
    input:
        source=ancient(source_files(COHORT_PARTS)),
        samples=ancient(SETTINGS.samples),
    # Not deleted before the job: it keeps them if they are already those that it would make.
    output:
        records=update(f"{RUN}/images/{{part}}.tfrecord"),
        state=update(f"{RUN}/images/{{part}}.json"),
    log:
        f"{RUN}/logs/prepare/{{part}}.log",
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=REQUESTS.mem_mb(),
        runtime=REQUESTS.minutes(COHORT_PARTS, NEW_PARTS),
        # On a cluster, one job prepares several parts; see profiles/slurm.
        slide_at_once=1,
        options=f"--stall-minutes {SETTINGS.instances.stall_minutes:g}",
        reuse=reuse_option(SETTINGS.reuse),
    params:
        **provenance("prepare", "prepare", "{part}", samples=COHORT_PARTS, states=f"{RUN}/images"),
        sources=source_texts(COHORT_PARTS),
        images=images_of_part(COHORT_PARTS),
        # A change of the splits moves images between parts, which `images` notices.
        splits=section("split"),
        parts=PARTS,
        settings=section("instances"),
    shell:
        run_recorded(
            "prepare",
            "--task instance_segmentation --samples {input.samples:q} --part {wildcards.part}"
            " --splits {params.splits:q} --parts {params.parts} --settings {params.settings:q} {resources.options}"
            " --records {output.records:q} --state {output.state:q}",
            source="{params.sources}",
            state="{output.state}",
            # The parts of a split are other images if their number changes, which `images` shows.
            made_with="{params.code} {params.settings:q} {params.images}",
            options="{resources.reuse}",
        )


# --- Evaluation of the model on the test split


rule evaluate:
    input:
        table=ALL_TABLE,
        states=states_of("test"),
        records=ancient([path.replace(".json", ".tfrecord") for path in states_of("test")]),
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        images=report(
            f"{RUN}/evaluation/images.tsv",
            caption="captions/images.rst",
            category="Evaluation",
            labels={"table": "metrics of the test images"},
        ),
        truth=f"{RUN}/evaluation/truth.json",
        detections=f"{RUN}/evaluation/detections.json",
        metrics=report(
            f"{RUN}/evaluation/metrics.json",
            caption="captions/image_metrics.rst",
            category="Evaluation",
            labels={"table": "metrics with confidence intervals"},
        ),
    log:
        f"{RUN}/logs/evaluate.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: 4
    resources:
        mem_mb=grow(8000),
        runtime=grow(480),
    params:
        **provenance("evaluate", "evaluate"),
        records=folder("images"),
        out=subpath(output.images, parent=True),
        detection=task_settings("validation"),
        settings=section("evaluate"),
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task instance_segmentation --table {input.table:q} --records {params.records:q}'
            " --model {input.model:q} --described {input.described:q} --detection {params.detection:q}"
            " --settings {params.settings:q} --cores {threads} --out {params.out:q}"
        )


# --- Prediction of new images, prepared in the same way as the cohort


use rule prepare as prepare_new with:
    input:
        source=ancient(source_files(NEW_PARTS)),
        samples=ancient(SETTINGS.predict.samples or []),
    output:
        records=update(f"{RUN}/predictions/images/{{part}}.tfrecord"),
        state=update(f"{RUN}/predictions/images/{{part}}.json"),
    log:
        f"{RUN}/logs/prepare_new/{{part}}.log",
    params:
        **provenance(
            "prepare_new",
            "prepare",
            "{part}",
            samples=NEW_PARTS,
            states=f"{RUN}/predictions/images",
        ),
        sources=source_texts(NEW_PARTS),
        images=images_of_part(NEW_PARTS),
        splits="new",
        parts=PARTS,
        settings=section("instances"),


rule predict:
    input:
        table=NEW_TABLE,
        records=ancient(
            expand(f"{RUN}/predictions/images/{{name}}.tfrecord", name=record_names(NEW_ROWS))
        ),
        model=ancient(f"{MODEL}/model.keras"),
        described=f"{MODEL}/settings.json",
    output:
        images=f"{RUN}/predictions/images.predicted.tsv",
        detections=f"{RUN}/predictions/detections.json",
    log:
        f"{RUN}/logs/predict.log",
    benchmark:
        f"{RUN}/benchmarks/predict.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: 4
    resources:
        mem_mb=grow(8000),
        runtime=grow(480),
    params:
        **provenance("predict", "predict"),
        records=folder("predictions/images"),
        detection=task_settings("validation"),
    shell:
        recorded(
            'python "$SCRIPTS/predict.py" --task instance_segmentation --table {input.table:q} --records {params.records:q}'
            " --model {input.model:q} --described {input.described:q} --detection {params.detection:q}"
            " --cores {threads} --images {output.images:q} --detections {output.detections:q}"
        )


# --- External validation: new images with annotations


if EXTERNAL:
    # The figures of the model on its test split, of this run or in the bundle.
    TEST_METRICS = f"{MODEL}/metrics.json" if BUNDLE else f"{RUN}/evaluation/metrics.json"

    rule external:
        input:
            metrics=TEST_METRICS,
            described=f"{MODEL}/settings.json",
            table=NEW_TABLE,
            states=[f"{RUN}/predictions/images/{name}.json" for name in NEW_PARTS],
            records=ancient([f"{RUN}/predictions/images/{name}.tfrecord" for name in NEW_PARTS]),
            predicted=rules.predict.output.images,
            detections=rules.predict.output.detections,
            matches=f"{RUN}/predictions/in_cohort.tsv",
            samples=ancient(SETTINGS.predict.samples),
        output:
            images=f"{RUN}/predictions/external/images.tsv",
            metrics=f"{RUN}/predictions/external/metrics.json",
        log:
            f"{RUN}/logs/external.log",
        benchmark:
            f"{RUN}/benchmarks/external.tsv"
        conda:
            "../envs/cpu.yaml"
        resources:
            mem_mb=grow(4000),
            runtime=grow(240),
        params:
            **provenance("external", "evaluate_external"),
            sheet=sheet(SETTINGS.predict.samples),
            settings=section("evaluate"),
            compared=not_compared(RUN, ALL_TABLE, BUNDLE),
            records=folder("predictions/images"),
        shell:
            recorded(
                'python "$SCRIPTS/evaluate_external.py" --task instance_segmentation --table {input.table:q}'
                " --records {params.records:q} --predicted {input.predicted:q} --detections {input.detections:q}"
                " --samples {input.samples:q} --matches {input.matches:q} {params.compared}"
                " --described {input.described:q} --metrics {input.metrics:q} --settings {params.settings:q}"
                " --out {output.metrics:q}"
            )

    rule external_page:
        input:
            external=f"{RUN}/predictions/external/metrics.json",
            images=f"{RUN}/predictions/external/images.tsv",
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
                'python "$SCRIPTS/write_external_page.py" --task instance_segmentation --external {input.external:q}'
                " --images {input.images:q} --metrics {input.metrics:q} --described {input.described:q}"
                " --title {params.title} --out {output.page:q}"
            )


# --- Instances of whole slides: a job per slide, then a page for each


rule detect_slide:
    input:
        source=ancient(source_files(SLIDES)),
        model=ancient(f"{MODEL}/model.keras"),
        described=f"{MODEL}/settings.json",
    output:
        table=f"{RUN}/predictions/slides/{{slide}}.parquet",
        outlines=f"{RUN}/predictions/slides/{{slide}}.geojson.gz",
        overview=f"{RUN}/predictions/slides/{{slide}}.jpg",
        state=f"{RUN}/predictions/slides/{{slide}}.json",
    log:
        f"{RUN}/logs/detect_slide/{{slide}}.log",
    benchmark:
        f"{RUN}/benchmarks/detect_slide/{{slide}}.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: 2
    resources:
        mem_mb=grow(8000),
        runtime=grow(480),
        options=f"--stall-minutes {SETTINGS.instances.stall_minutes:g} --on-error {SETTINGS.instances.on_error}",
    params:
        **provenance(
            "detect_slide",
            "detect_slide",
            "{slide}",
            samples=SLIDES,
            states=f"{RUN}/predictions/slides",
        ),
        source=source_text(SLIDES),
        options=slide_options(SLIDES),
        detection=task_settings("validation"),
        settings=section("slide_instances"),
    shell:
        recorded(
            'python "$SCRIPTS/detect_slide.py" --slide {wildcards.slide} --source {params.source}'
            " {params.options}"
            " --model {input.model:q} --described {input.described:q} --detection {params.detection:q}"
            " --settings {params.settings:q} {resources.options} --cores {threads} --table {output.table:q}"
            " --outlines {output.outlines:q} --overview {output.overview:q} --state {output.state:q}",
            source="{params.source}",
            state="{output.state}",
        )


DETECTED = expand(rules.detect_slide.output, slide=SLIDES)


rule slide_pages:
    input:
        slides=ancient(SETTINGS.predict.slides or []),
        table=[] if BUNDLE else ALL_TABLE,
        states=[] if BUNDLE else ALL_STATES,
        detected=[path for path in DETECTED if path.endswith(".json")],
        # Their checksums are in the states.
        large=ancient([path for path in DETECTED if not path.endswith(".json")]),
        model=small_files(MODEL_FILES),
        weights=large_files(MODEL_FILES),
    output:
        index=report(
            f"{RUN}/predictions/slide_pages/index.html",
            caption="captions/predictions.rst",
            category="Predictions",
            labels={"page": "whole slides"},
        ),
        pages=directory(f"{RUN}/predictions/slide_pages/slides"),
        table=f"{RUN}/predictions/slides.tsv",
        matches=f"{RUN}/predictions/slides_in_cohort.tsv",
    log:
        f"{RUN}/logs/slide_pages.log",
    benchmark:
        f"{RUN}/benchmarks/slide_pages.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(240),
    params:
        **provenance("slide_pages", "write_slide_pages"),
        sheet=sheet(SETTINGS.predict.slides),
        run=folder(),
        model=literal(shlex.quote(MODEL)),
        cohort="" if BUNDLE else f"--cohort {RUN}",
        out=subpath(output.index, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/write_slide_pages.py" --run-dir {params.run:q} --slides {input.slides:q}'
            " --model-dir {params.model} {params.cohort} --table {output.table:q} --matches {output.matches:q} --out {params.out:q}"
        )


# The files of the evaluation and of the prediction that the pages show.
EVALUATED = rules.evaluate.output
PREDICTED = rules.predict.output if NEW else []
