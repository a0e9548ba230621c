# All of a run against the present settings, sheet and code; to be asked for by name.
import json


# It has no output, so it is always done. Another Snakemake says what should be there, and why it is
# not current.
rule verify:
    log:
        f"{RUN}/logs/verify.log",
    localrule: True
    conda:
        "../envs/cpu.yaml"
    # As many as there are.
    threads: 1000
    params:
        run=RUN,
        settings=json.dumps(SETTINGS.model_dump() | ({"slides": "elsewhere"} if ELSEWHERE else {})),
    shell:
        "python scripts/verify.py --run-dir {params.run:q} --settings {params.settings:q}"
        " --threads {threads} > {log:q} 2>&1 && cat {log:q}"
