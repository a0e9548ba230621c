# Prediction of numbers and of times to events of slides by embeddings of their tiles.


include: "embeddings.smk"


# --- The predictions of all slides of a split


rule evaluate_valid:
    input:
        slides=TRAINING_TABLE,
        described=f"{RUN}/model/settings.json",
        scored=[f"{RUN}/validation/maps/{row['slide']}.json" for row in members_of("valid")],
    output:
        slides=f"{RUN}/validation/slides.tsv",
    log:
        f"{RUN}/logs/evaluate_valid.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate_valid.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(60),
    params:
        **provenance("evaluate_valid", "evaluate"),
        maps=folder("validation/maps"),
        out=subpath(output.slides, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task slide_outcome --table {input.slides:q} --maps {params.maps:q}'
            " --described {input.described:q} --settings '{{}}' --split valid --out {params.out:q}"
        )


# The risk that divides the test patients into two groups is the median of the validation split.
rule evaluate:
    input:
        slides=ALL_TABLE,
        described=f"{RUN}/model/settings.json",
        scored=[f"{RUN}/evaluation/maps/{row['slide']}.json" for row in members_of("test")],
        validated=f"{RUN}/validation/slides.tsv",
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
        maps=folder("evaluation/maps"),
        out=subpath(output.slides, parent=True),
        settings=section("evaluate"),
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task slide_outcome --table {input.slides:q} --maps {params.maps:q}'
            " --described {input.described:q} --settings {params.settings:q} --validated {input.validated:q}"
            " --split test --out {params.out:q}"
        )


# The files of the evaluation that the pages show.
EVALUATED = [*rules.evaluate.output, *rules.evaluate.input.scored]
PREDICTED = []
