"""The code that a command runs, found from its source without running any of it.

It is the command itself, every module of the library that it reaches by imports, wherever in a
module they stand, the versions of the packages that these import and of all that those need in
turn, as the lock file pins them, and Python's own version without the number of its patch.
Comments, docstrings and the layout of the text count for nothing.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gigatile.errors import UserError
from gigatile.models import ARCHITECTURES

# Where things are in a project, seen from its root.
LIBRARY = "gigatile"
LOCK = "envs/requirements.lock"

# What the library has beside code: templates, and what pages are made of.
DATA = (".j2", ".css", ".js")

# Packages that are imported under another name than they are installed, or consist of several.
DISTRIBUTIONS = {
    "PIL": ("pillow",),
    "cv2": ("opencv-python-headless",),
    "google": ("protobuf",),
    "google_crc32c": ("google-crc32c",),
    "openslide": ("openslide-python", "openslide-bin"),
    "sklearn": ("scikit-learn",),
    "tensorflow": ("tensorflow-cpu",),
    "yaml": ("pyyaml",),
}


class Plugins(NamedTuple):
    """Which of the modules that the library imports by name a run uses.

    Attributes:
        task: its task; `task_part(name, "training")` imports the module of a stage.
        model: its architecture; `load_builder(name)` imports its module.
    """

    task: str
    model: str


def code_of(command: Path, plugins: Plugins) -> str:
    """Return a SHA-256 that changes when what a command does may change.

    Args:
        command: a Python file in the folder `scripts` of a project.
        plugins: the task and the model of the run.

    Raises:
        UserError: a file is missing or no Python, or a package that is imported is not in the lock
            file.
    """
    project = command.parents[1]
    files = reached_by(command, plugins)
    pinned = _pinned(project / LOCK)
    packages = {package for path in files for package in _packages(path)}
    unknown = sorted(packages - pinned.keys())
    if unknown:
        raise UserError(f"{project / LOCK}: pins no {', '.join(unknown)}, which {command} imports")
    parts = {str(path.relative_to(project)): _meaning(path) for path in files}
    parts |= {package: pinned[package] for package in packages_needed(packages, project / LOCK)}
    parts["Python"] = "{}.{}".format(*sys.version_info)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def reached_by(command: Path, plugins: Plugins) -> list[Path]:
    """Return a command and the files of its project's library that it reaches, sorted."""
    project = command.parents[1]
    found: set[Path] = set()
    waiting = [command]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            if path.suffix == ".py":
                waiting += _imported(path, project)
                for module in _plugin_modules(path, plugins):
                    waiting += _files_of(module, project)
    return sorted(found)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


@cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(_content(path))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path}: no Python ({error})") from None


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree and the statements in it that can run, without their expressions."""
    yield tree
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, part, ()):
            yield from _statements(node)


@cache
def _names(path: Path) -> frozenset[str]:
    """Return the names that a file imports, dotted: modules, and what it takes from them."""
    found = set()
    for node in _statements(_tree(path)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            # The house's imports are absolute; a test says so.
            found |= {f"{node.module}.{one.name}" for one in node.names}
    return frozenset(found)


@cache
def _imported(path: Path, project: Path) -> tuple[Path, ...]:
    """Return the files of the library that importing a file reads."""
    return tuple(sorted({file for name in _names(path) for file in _files_of(name, project)}))


def _files_of(name: str, project: Path) -> set[Path]:
    """Return the files that importing a dotted name reads: importing a.b.c runs a and a.b, too."""
    package, *parts = name.split(".")
    if package != LIBRARY:
        return set()
    path = project / LIBRARY
    files = {path / "__init__.py"}
    for part in parts:  # a part without a file is a name in a module
        path = path / part
        if path.is_dir():
            files.add(path / "__init__.py")
            files.update(_data(path))
        elif path.with_suffix(".py").is_file():
            files.add(path.with_suffix(".py"))
    return files


def _plugin_modules(path: Path, plugins: Plugins) -> Iterator[str]:
    """Yield the modules that a file imports by name, for the task and the model of the run.

    Raises:
        UserError: the stage of a task is not a literal.
    """
    for name, stage in _plugin_calls(path):
        if name == "load_builder":
            yield ARCHITECTURES[plugins.model].module
        else:
            yield f"{LIBRARY}.tasks.{plugins.task}.{stage}"


@cache
def _plugin_calls(path: Path) -> tuple[tuple[str, str], ...]:
    """Return the calls of a file that import modules by name, with the stage that they name."""
    calls = []
    for node in ast.walk(_tree(path)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in ("find_task", "load_builder"):
            calls.append((name, "definition"))
        elif name == "task_part":
            stage = node.args[1] if len(node.args) == 2 else None
            if not isinstance(stage, ast.Constant):
                raise UserError(f"{path}: the stage in {ast.unparse(node)} must be a literal")
            calls.append((name, str(stage.value)))
    return tuple(calls)


def _data(package: Path) -> Iterator[Path]:
    """Yield the data files of a package, without hidden files and those of packages in it."""
    for path in package.rglob("*"):
        if path.suffix in DATA and not path.name.startswith(".") and path.is_file():
            nearest = next(parent for parent in path.parents if (parent / "__init__.py").exists())
            if nearest == package:
                yield path


@cache
def _packages(path: Path) -> frozenset[str]:
    """Return the packages that a file imports, as the lock file names them."""
    if path.suffix != ".py":
        return frozenset()
    tops = {name.split(".")[0] for name in _names(path)}
    others = tops - sys.stdlib_module_names - {LIBRARY}
    return frozenset(one for top in others for one in DISTRIBUTIONS.get(top, (top,)))


@cache
def _meaning(path: Path) -> str:
    """Return a SHA-256 of what a file says: of Python, without comments and docstrings."""
    if path.suffix != ".py":
        return hashlib.sha256(_content(path)).hexdigest()
    tree = _tree(path)
    for node in list(_statements(tree)):
        if isinstance(node, _DOCUMENTED) and node.body and _is_text(node.body[0]):
            del node.body[0]
            # As where a function without a docstring does nothing.
            node.body = node.body or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def packages_needed(packages: Iterable[str], lock: Path) -> set[str]:
    """Return packages and all that they need, directly or through others."""
    needed, waiting = set(), set(packages)
    while waiting:
        package = waiting.pop()
        needed.add(package)
        waiting |= _needs(lock).get(package, set()) - needed
    return needed


@cache
def _needs(lock: Path) -> dict[str, set[str]]:
    """Return which packages each one needs, from the comments `via` in the lock file."""
    found: dict[str, set[str]] = {}
    package, in_comment = "", False
    for line in lock.read_text().splitlines():
        if pinned := re.match(r"([a-z0-9-]+)==", line):
            package, in_comment = pinned[1], False
        elif line_of_via := re.match(r"    # (via)? *([a-z0-9][a-z0-9-]*)?", line):
            in_comment = in_comment or bool(line_of_via[1])
            if in_comment and line_of_via[2]:
                found.setdefault(line_of_via[2], set()).add(package)
    return found


@cache
def _pinned(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))
