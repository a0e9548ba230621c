# Verification of a run against the present settings, sheet and code. Runs on request only.
import json


# Without outputs, the rule always runs. Its command calls Snakemake to list the expected files.
rule verify:
    log:
        f"{RUN}/logs/verify.log",
    localrule: True
    conda:
        "../envs/cpu.yaml"
    # All cores: Snakemake reduces the number to those available.
    threads: 1000
    params:
        run=RUN,
        settings=literal(
            json.dumps(SETTINGS.model_dump() | ({"slides": "elsewhere"} if ELSEWHERE else {}))
        ),
    shell:
        'python "$SCRIPTS/verify.py" --run-dir {params.run:q} --settings {params.settings:q}'
        " --threads {threads} > {log:q} 2>&1 && cat {log:q}"
