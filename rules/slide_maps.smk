# The predictions of slides that have a map each, in one table: of the test split, of the validation split, and of
# new slides. The rules score, score_valid and score_new are those of a task. VALIDATED is the table of the
# validation split if the figures of the test split depend on it, otherwise [].


rule evaluate:
    input:
        slides=ALL_TABLE,
        described=f"{RUN}/model/settings.json",
        scored=[f"{RUN}/evaluation/maps/{row['slide']}.json" for row in members_of("test")],
        validated=VALIDATED,
    output:
        slides=report(
            f"{RUN}/evaluation/slides.tsv",
            caption="captions/slides.rst",
            category="Evaluation",
            labels={"table": "predictions of the test slides"},
        ),
        metrics=report(
            f"{RUN}/evaluation/metrics.json",
            caption="captions/metrics.rst",
            category="Evaluation",
            labels={"table": "metrics with confidence intervals"},
        ),
    log:
        f"{RUN}/logs/evaluate.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(60),
    params:
        **provenance("evaluate", "evaluate"),
        task=SETTINGS.task,
        maps=folder("evaluation/maps"),
        out=subpath(output.slides, parent=True),
        settings=section("evaluate"),
        split="test",
        validated=literal(f"--validated {shlex.quote(VALIDATED)}" if VALIDATED else ""),
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task {params.task} --table {input.slides:q} --maps {params.maps:q}'
            " --described {input.described:q} --settings {params.settings:q} {params.validated}"
            " --split {params.split} --out {params.out:q}"
        )


use rule evaluate as evaluate_valid with:
    input:
        slides=TRAINING_TABLE,
        described=f"{RUN}/model/settings.json",
        scored=[f"{RUN}/validation/maps/{row['slide']}.json" for row in members_of("valid")],
        validated=[],
    output:
        slides=f"{RUN}/validation/slides.tsv",
    log:
        f"{RUN}/logs/evaluate_valid.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate_valid.tsv"
    params:
        **provenance("evaluate_valid", "evaluate"),
        task=SETTINGS.task,
        maps=folder("validation/maps"),
        out=subpath(output.slides, parent=True),
        settings=literal("{}"),
        split="valid",
        validated="",


rule predict:
    input:
        slides=NEW_TABLE,
        described=f"{MODEL}/settings.json",
        scored=expand(f"{RUN}/predictions/maps/{{slide}}.json", slide=NEW),
    output:
        slides=report(
            f"{RUN}/predictions/slides.tsv",
            caption="captions/predictions.rst",
            category="Predictions",
            labels={"table": "predictions of the new slides"},
        ),
        provenance=f"{RUN}/predictions/provenance.json",
    log:
        f"{RUN}/logs/predict.log",
    benchmark:
        f"{RUN}/benchmarks/predict.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(60),
    params:
        **provenance("predict", "evaluate"),
        task=SETTINGS.task,
        maps=folder("predictions/maps"),
        out=subpath(output.slides, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task {params.task} --new --table {input.slides:q} --maps {params.maps:q}'
            " --described {input.described:q} --out {params.out:q}"
        )
