# Classification of slides by embeddings of their tiles.


include: "embeddings.smk"


# A linear probe and nearest neighbours, fitted to train: what the encoder alone can do.
rule baselines:
    input:
        table=ALL_TABLE,
        states=ALL_STATES,
        slides=f"{RUN}/evaluation/slides.tsv",
        described=f"{RUN}/model/settings.json",
    output:
        figures=f"{RUN}/evaluation/baselines.json",
    log:
        f"{RUN}/logs/baselines.log",
    benchmark:
        f"{RUN}/benchmarks/baselines.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(120),
    params:
        **provenance("baselines", "evaluate_baselines"),
        embeddings=folder("embeddings"),
        settings=section("evaluate"),
    shell:
        recorded(
            'python "$SCRIPTS/evaluate_baselines.py" --table {input.table:q} --states {input.states:q} --embeddings {params.embeddings:q}'
            " --slides {input.slides:q} --described {input.described:q} --settings {params.settings:q}"
            " --out {output.figures:q}"
        )


VALIDATED = []


include: "slide_maps.smk"


# The files of the evaluation and of the prediction that the pages show.
EVALUATED = [
    *rules.evaluate.output,
    *rules.evaluate.input.scored,
    *rules.baselines.output,
]
PREDICTED = [*rules.predict.output, *rules.predict.input.scored]


include: "slide_figures.smk"
