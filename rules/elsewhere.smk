# Slides that are on another machine: a plan names them, and no file is made up.
ABSENT = [path for path in FILES if not os.path.exists(path)]

if workflow.is_main_process:
    told = f"slides=elsewhere: {len(ABSENT):,} of {len(FILES):,} {of_task('slides', 'volumes')} are not on this machine"
    print(told, file=sys.stderr)

if ABSENT:

    # Of those alone that are not here: what a rule makes is deleted before it is made.
    rule slides_elsewhere:
        output:
            update(ABSENT),
        localrule: True
        shell:
            "echo error: {output[0]:q} 'is not on this machine, and nothing can be made of it here' >&2; exit 2"
