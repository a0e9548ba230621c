# Calibration, operating points and external validation of classifiers of slides.
from gigatile.workflow.inputs import not_compared
from gigatile.workflow.slide_figures import wanted_rates

# The figures of the model on its test split, of this run or in the bundle.
TEST_FIGURES = {
    name: f"{MODEL}/{file}" if BUNDLE else f"{RUN}/{folder}/{file}"
    for name, folder, file in (
        ("metrics", "evaluation", "metrics.json"),
        ("calibration", "evaluation", "calibration.json"),
        ("points", "validation", "operating_points.json"),
    )
}


if not BUNDLE:

    # The thresholds: no test slide is read.
    rule operating_points:
        input:
            slides=f"{RUN}/validation/slides.tsv",
            described=f"{RUN}/model/settings.json",
        output:
            points=f"{RUN}/validation/operating_points.json",
        log:
            f"{RUN}/logs/operating_points.log",
        benchmark:
            f"{RUN}/benchmarks/operating_points.tsv"
        conda:
            "../envs/cpu.yaml"
        resources:
            mem_mb=grow(1000),
            runtime=grow(10),
        params:
            **provenance("operating_points", "choose_operating_points"),
            wanted=wanted_rates(SETTINGS.evaluate),
        shell:
            recorded(
                'python "$SCRIPTS/choose_operating_points.py" --slides {input.slides:q} --described {input.described:q}'
                " {params.wanted} --out {output.points:q}"
            )

    rule calibration:
        input:
            slides=f"{RUN}/evaluation/slides.tsv",
            points=f"{RUN}/validation/operating_points.json",
        output:
            figures=f"{RUN}/evaluation/calibration.json",
        log:
            f"{RUN}/logs/calibration.log",
        benchmark:
            f"{RUN}/benchmarks/calibration.tsv"
        conda:
            "../envs/cpu.yaml"
        resources:
            mem_mb=grow(4000),
            runtime=grow(30),
        params:
            **provenance("calibration", "calibrate"),
            settings=section("evaluate"),
        shell:
            recorded(
                'python "$SCRIPTS/calibrate.py" --slides {input.slides:q} --points {input.points:q}'
                " --settings {params.settings:q} --out {output.figures:q}"
            )

    # What the report and the bundle have of these.
    EVALUATED = [*EVALUATED, f"{RUN}/evaluation/calibration.json"]
    OPERATING_POINTS = f"{RUN}/validation/operating_points.json"


if EXTERNAL:

    rule external:
        input:
            **TEST_FIGURES,
            slides=f"{RUN}/predictions/slides.tsv",
            table=NEW_TABLE,
            matches=f"{RUN}/predictions/in_cohort.tsv",
            samples=ancient(SETTINGS.predict.samples),
        output:
            metrics=f"{RUN}/predictions/external/metrics.json",
        log:
            f"{RUN}/logs/external.log",
        benchmark:
            f"{RUN}/benchmarks/external.tsv"
        conda:
            "../envs/cpu.yaml"
        resources:
            mem_mb=grow(4000),
            runtime=grow(60),
        params:
            **provenance("external", "evaluate_external"),
            task=SETTINGS.task,
            sheet=sheet(SETTINGS.predict.samples),
            settings=section("evaluate"),
            compared=not_compared(RUN, ALL_TABLE, BUNDLE),
        shell:
            recorded(
                'python "$SCRIPTS/evaluate_external.py" --task {params.task} --slides {input.slides:q} --table {input.table:q}'
                " --samples {input.samples:q} --matches {input.matches:q} {params.compared} --points {input.points:q}"
                " --metrics {input.metrics:q} --calibration {input.calibration:q} --settings {params.settings:q}"
                " --out {output.metrics:q}"
            )

    rule external_page:
        input:
            **TEST_FIGURES,
            external=f"{RUN}/predictions/external/metrics.json",
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
            task=SETTINGS.task,
            title=literal(shlex.quote(f"External validation of {SETTINGS.run}")),
        shell:
            recorded(
                'python "$SCRIPTS/write_external_page.py" --task {params.task} --external {input.external:q} --metrics {input.metrics:q}'
                " --calibration {input.calibration:q} --points {input.points:q} --title {params.title} --out {output.page:q}"
            )
