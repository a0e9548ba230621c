"""What programs can say, read from what they are made of, where it cannot be provoked here."""

import ast
import shutil
from collections.abc import Iterable
from pathlib import Path


def texts_in(files: Iterable[Path]) -> list[str]:
    """Return every text in Python files; … replaces filled-in values."""
    texts = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                texts.append(_text(node))
    return texts


def messages_of(files: Iterable[Path], *names: str) -> list[str]:
    """Return the texts that are arguments of calls of some functions or errors."""
    texts = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or _name(node.func) not in names:
                continue
            for text in node.args:
                # Of one thing or another, each for itself.
                choices = [text.body, text.orelse] if isinstance(text, ast.IfExp) else [text]
                texts += [_text(choice) for choice in choices if _text(choice).strip("…")]
    return texts


def _name(function: ast.expr) -> str:
    return getattr(function, "id", getattr(function, "attr", ""))


def _text(node: ast.expr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    values = [getattr(part, "value", None) for part in parts]
    return "".join(v if isinstance(v, str) else "…" for v in values)


def slurm_files() -> list[Path]:
    """Return the programs and libraries of the SLURM that is installed here; none where none is."""
    programs = [shutil.which(name) for name in ("srun", "sbatch", "slurmctld", "slurmstepd")]
    if None in programs:
        return []
    return [*map(Path, filter(None, programs)), *Path("/usr/lib").glob("*/slurm-wlm/*.so")]
