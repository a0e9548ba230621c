# Slides that are on another machine: a plan names them, and no file is made up.
import re


def like_a_slide(samples):
    """Return a pattern for the files of samples, and of few others."""
    files = {os.path.normpath(sample.path) for sample in samples}
    kinds = {Path(file).suffix for file in files} - {""}
    named = [re.escape(file) for file in files if not Path(file).suffix]
    return "|".join([*(f".*{re.escape(kind)}" for kind in sorted(kinds)), *sorted(named)])


ruleorder: demo_slide > slide_elsewhere


rule slide_elsewhere:
    output:
        "{file}",
    wildcard_constraints:
        file=like_a_slide([*COHORT.values(), *NEW.values()]),
    localrule: True
    shell:
        "echo error: {output:q} 'is not on this machine, and nothing can be made of it here' >&2; exit 2"
