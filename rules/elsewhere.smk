# Slides on another machine: a plan lists them, but cannot create them.
import os
import sys

ROWS_WITH_FILES = [*COHORT.values(), *NEW.values(), *SLIDES.values()]
FILES = {path for row in ROWS_WITH_FILES for path in on_disk(row.files)}
FILES |= set(on_disk(REFERENCES.values()))
ABSENT = sorted(path for path in FILES if not os.path.exists(path))

if INVOCATION.is_main_process:
    print(
        f"slides=elsewhere: {len(ABSENT):,} of {len(FILES):,} files are not on this machine",
        file=sys.stderr,
    )

if ABSENT:

    # Only missing files are outputs: Snakemake deletes outputs before a job starts.
    rule slides_elsewhere:
        output:
            update(ABSENT),
        localrule: True
        shell:
            "echo error: {output[0]:q} 'is not on this machine; run this job where it is' >&2; exit 2"
