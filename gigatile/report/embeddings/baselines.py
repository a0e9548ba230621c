"""The section with the baselines."""

from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.evaluation.baselines import Baselines
from gigatile.json_models import read_model
from gigatile.report.task_report import Content, Section

TEMPLATES = Path(__file__).parent / "templates"
FILE = "baselines.json"


def _baselines(run: Any) -> Content:
    path = run.files["evaluation_dir"] / FILE
    baselines = read_model(Baselines, path)
    if baselines.classes != run.model.classes:
        raise UserError(
            f"{path}: classes are {baselines.classes}, the model's are {run.model.classes}"
        )
    run.ledger.add(f"evaluation/{FILE}", path, "Baselines; Embeddings; Tiles")
    run.ledger.check(f"evaluation/{FILE}", baselines.inputs, path)
    return Content({"figures": baselines.figures, "intervals": baselines.intervals})


BASELINES_SECTION = Section("baselines", "Baselines", TEMPLATES / "baselines.html.j2", _baselines)
