"""TensorFlow is imported without libraries that a command may still use."""

import subprocess
import sys

PROGRAM = """\
import gc, importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
before = {name: sys.modules[name] for name in sys.argv[1:]}
from gigatile.software import import_tensorflow
import_tensorflow()
print([name for name in ("matplotlib", "sklearn", "pandas") if name in sys.modules])
assert gc.isenabled() and all(sys.modules[name] is before[name] for name in before)
import matplotlib.figure, pandas, sklearn.metrics
print(len(pandas.DataFrame({"a": [1, 2]})), sklearn.metrics.roc_auc_score([0, 1], [0, 1]))
"""


def run(*imported: str) -> list[str]:
    line = [sys.executable, "-c", PROGRAM, *imported]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_libraries_are_imported_where_they_are_used():
    assert run() == ["[]", "2 1.0"]


def test_what_was_imported_before_stays():
    assert run("pandas") == ["['pandas']", "2 1.0"]
