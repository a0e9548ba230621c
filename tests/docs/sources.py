"""What programs can say, read from what they are made of, where it cannot be provoked here."""

import ast
import shutil
from collections.abc import Iterable
from pathlib import Path


def texts_in(files: Iterable[Path]) -> list[str]:
    """Return every text in Python files; … stands for what is filled in."""
    found = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            if isinstance(node, ast.JoinedStr | ast.Constant):
                values = [getattr(part, "value", None) for part in parts]
                found.append("".join(v if isinstance(v, str) else "…" for v in values))
    return found


def slurm_files() -> list[Path]:
    """Return the programs and libraries of the SLURM that is installed here; none where none is."""
    programs = [shutil.which(name) for name in ("srun", "sbatch", "slurmctld", "slurmstepd")]
    if None in programs:
        return []
    return [*map(Path, filter(None, programs)), *Path("/usr/lib").glob("*/slurm-wlm/*.so")]
