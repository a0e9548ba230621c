"""Find the code that a command can run, by static analysis of its imports.

The hash covers the command, all library modules that it imports directly or indirectly (imports
inside functions included), the pinned versions of the packages that these import and of their
dependencies, and Python's minor version. Comments, docstrings and formatting are ignored.
"""

import ast
import atexit
import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gigatile.errors import UserError
from gigatile.files import write_text
from gigatile.models import ARCHITECTURES

# Paths relative to the folder of a project.
LIBRARY = "gigatile"
LOCK = "envs/requirements.lock"

# Files of the library other than code: templates, style sheets and scripts of pages.
DATA = (".j2", ".css", ".js")

# Distributions by the package that they provide, if their names differ.
DISTRIBUTIONS = {
    "PIL": ("pillow",),
    "cv2": ("opencv-python-headless",),
    "google": ("protobuf",),
    "openslide": ("openslide-python", "openslide-bin"),
    "sklearn": ("scikit-learn",),
    "tensorflow": ("tensorflow-cpu",),
    "yaml": ("pyyaml",),
}

# Maximum number of cached analyses: the files of a few releases of the library.
MAX_ANALYSES = 3000

# Registries of plugins: file, variable, and the field of `Plugins` with the entry that a run uses.
REGISTRIES = {
    f"{LIBRARY}/tasks/__init__.py": ("TASKS", "task"),
    f"{LIBRARY}/models/__init__.py": ("ARCHITECTURES", "model"),
}


class Plugins(NamedTuple):
    """The modules that a run selects by name.

    Attributes:
        task: the task; `task_part(name, "training")` imports the module of a stage.
        model: the architecture; `load_builder(name)` imports its module.
    """

    task: str
    model: str


def code_hash(command: Path, plugins: Plugins) -> str:
    """Return a SHA-256 that changes when the code that a command can run changes.

    Args:
        command: a Python file in the folder `scripts` of a project.
        plugins: the task and the model of the run.

    Raises:
        UserError: a file is missing or is not valid Python, or an imported package is not pinned in
            the lock file.
    """
    project = command.parents[1]
    lock = project / LOCK
    files = reachable_files(command, plugins)
    pinned = _pinned_versions(lock)
    imported = {package for path in files for package in _imported_packages(path)}
    unpinned = sorted(imported - pinned.keys())
    if unpinned:
        raise UserError(
            f"{lock}: {', '.join(unpinned)} not pinned, but imported by {command}; run `make lock`"
        )
    parts = {}
    for path in files:
        name = _name(path, project)
        registry = REGISTRIES.get(name)
        parts[name] = _registry_hash(path, *registry, plugins) if registry else _file_hash(path)
    parts |= {package: pinned[package] for package in with_dependencies(imported, lock)}
    parts["Python"] = "{}.{}".format(*sys.version_info)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _library(project: Path) -> Path:
    """Return the folder of the library: of an installed package, the project is in it."""
    folder = project / LIBRARY
    return folder if folder.is_dir() else project.parent


def _name(path: Path, project: Path) -> str:
    """Return the path of a file in a checkout, wherever the library is installed."""
    if path.is_relative_to(project):
        return str(path.relative_to(project))
    return f"{LIBRARY}/{path.relative_to(_library(project))}"


def reachable_files(command: Path, plugins: Plugins) -> list[Path]:
    """Return a command and the files of the library that it can import, sorted."""
    project = command.parents[1]
    reachable: set[Path] = set()
    queue = [command]
    while queue:
        path = queue.pop()
        if path not in reachable:
            reachable.add(path)
            if path.suffix == ".py":
                queue += _imported_files(path, project)
                for module in _plugin_modules(path, plugins):
                    queue += _files_of_module(module, project)
    return sorted(reachable)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


class _Code(NamedTuple):
    """What is needed of the code of a file.

    Attributes:
        imported: the dotted names that it imports: modules, and names from modules.
        plugins: its calls that import modules by name: the function, and the expression that names
            the stage.
        sha256: of the code without comments and docstrings.
    """

    imported: frozenset[str]
    plugins: tuple[tuple[str, str], ...]
    sha256: str


@cache
def _code(path: Path) -> _Code:
    try:
        return _known_analyses().of(_read(path))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path}: not valid Python: {error}") from None


@cache
def _known_analyses() -> "_Analyses":
    """Return the cached analyses of this user, for this release and Python version."""
    version = hashlib.sha256(_read(Path(__file__)) + sys.version.encode()).hexdigest()[:16]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # the user has no home folder, as in some containers
        return _Analyses(None)
    return _Analyses(folder / "gigatile" / f"code-{version}.json")


class _Analyses:
    """Analyses of files by the SHA-256 of their content, cached in a file for the next plan.

    Parsing the whole library takes half a second, as long as planning some hundred slides.
    """

    def __init__(self, file: Path | None) -> None:
        self._known: dict[str, _Code] = {}
        self._is_new = False
        self._file = file
        if file is None:
            return
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            for content, (imported, plugins, sha256) in json.loads(file.read_bytes()).items():
                calls = tuple((str(name), str(stage)) for name, stage in plugins)
                self._known[content] = _Code(frozenset(map(str, imported)), calls, str(sha256))
        atexit.register(self._write)

    def of(self, content: bytes) -> _Code:
        """Return the analysis of a file's content."""
        key = hashlib.sha256(content).hexdigest()
        if key not in self._known:
            self._known[key] = _analysed(content)
            self._is_new = True
        return self._known[key]

    def _write(self) -> None:
        if self._is_new and self._file is not None:
            known = list(self._known.items())[-MAX_ANALYSES:]
            text = json.dumps({key: [sorted(code[0]), *code[1:]] for key, code in known})
            with contextlib.suppress(OSError):
                write_text(self._file, text)


def _analysed(content: bytes) -> _Code:
    tree = ast.parse(content)
    imported = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # All imports of the library are absolute; a test checks it.
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    plugins = tuple(_plugin_calls(tree))
    return _Code(frozenset(imported), plugins, _tree_hash(tree))


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree and the statements in it that can run, but not their expressions."""
    yield tree
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, part, ()):
            yield from _statements(node)


def _plugin_calls(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in ("find_task", "load_builder"):
            yield name, "'definition'"
        elif name == "task_part":
            yield name, ", ".join(ast.unparse(argument) for argument in node.args[1:])


@cache
def _imported_files(path: Path, project: Path) -> tuple[Path, ...]:
    """Return the files of the library that a file imports."""
    return tuple(
        sorted({file for name in _code(path).imported for file in _files_of_module(name, project)})
    )


def _files_of_module(name: str, project: Path) -> set[Path]:
    """Return the files that importing a dotted name reads: importing a.b.c runs a and a.b, too."""
    package, *parts = name.split(".")
    if package != LIBRARY:
        return set()
    path = _library(project)
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
    for name, stage in _code(path).plugins:
        if name == "load_builder":
            yield ARCHITECTURES[plugins.model].module
        elif not re.fullmatch(r"'\w+'", stage):
            raise UserError(f"{path}: the stage of {name}() must be a literal, found {stage!r}")
        else:
            yield f"{LIBRARY}.tasks.{plugins.task}.{stage[1:-1]}"


@cache
def _data(package: Path) -> tuple[Path, ...]:
    """Return the data files of a package, without hidden files and those of packages in it."""
    return tuple(
        path
        for path in package.rglob("*")
        if path.suffix in DATA
        and not path.name.startswith(".")
        and path.is_file()
        and package == next(p for p in path.parents if (p / "__init__.py").exists())
    )


@cache
def _imported_packages(path: Path) -> frozenset[str]:
    """Return the packages that a file imports, as the lock file names them."""
    if path.suffix != ".py":
        return frozenset()
    tops = {name.split(".")[0] for name in _code(path).imported}
    others = tops - sys.stdlib_module_names - {LIBRARY}
    return frozenset(name for top in others for name in distributions_of(top))


def distributions_of(package: str) -> tuple[str, ...]:
    """Return the names, as on PyPI, of the distributions that provide a package."""
    return DISTRIBUTIONS.get(package, (package.replace("_", "-"),))


@cache
def _file_hash(path: Path) -> str:
    """Return the SHA-256 of a file; of Python code, without comments and docstrings."""
    if path.suffix != ".py":
        return hashlib.sha256(_read(path)).hexdigest()
    return _code(path).sha256


@cache
def _registry_hash(path: Path, variable: str, field: str, plugins: Plugins) -> str:
    """Return the SHA-256 of a registry with a single entry, the one that the run uses.

    So a new task or model does not rerun the runs of the others.
    """
    name = getattr(plugins, field)
    tree = ast.parse(_read(path))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable:
            value = node.value
            if isinstance(value, ast.Dict):
                entries = zip(value.keys, value.values, strict=True)
                kept = [(key, entry) for key, entry in entries if _is_literal(key, name)]
                value.keys, value.values = [key for key, _ in kept], [entry for _, entry in kept]
            elif isinstance(value, ast.Tuple):
                value.elts = [element for element in value.elts if _is_literal(element, name)]
    return _tree_hash(tree)


def _is_literal(node: ast.expr | None, value: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def _tree_hash(tree: ast.Module) -> str:
    for node in list(_statements(tree)):
        if isinstance(node, _DOCUMENTED) and node.body and _is_text(node.body[0]):
            del node.body[0]
            # The same as `pass` in a function without a docstring.
            node.body = node.body or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def with_dependencies(packages: Iterable[str], lock: Path) -> set[str]:
    """Return packages and all their direct and indirect dependencies."""
    required, queue = set(), set(packages)
    while queue:
        package = queue.pop()
        required.add(package)
        queue |= _dependencies(lock).get(package, set()) - required
    return required


@cache
def _dependencies(lock: Path) -> dict[str, set[str]]:
    """Return the direct dependencies of each package, from the comments `via` in the lock file."""
    dependencies: dict[str, set[str]] = {}
    package, in_comment = "", False
    for line in lock.read_text().splitlines():
        if pinned := re.match(r"([a-z0-9-]+)==", line):
            package, in_comment = pinned[1], False
        elif via := re.match(r"    # (via)? *([a-z0-9][a-z0-9-]*)?", line):
            in_comment = in_comment or bool(via[1])
            if in_comment and via[2]:
                dependencies.setdefault(via[2], set()).add(package)
    return dependencies


@cache
def _pinned_versions(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))
