"""Writes the results of a study: study.json, study.tsv, the comparison and index.html."""

from pathlib import Path

from gigatile.evaluation.compared_runs import RunsCompared
from gigatile.files import write_text
from gigatile.json_models import write_model
from gigatile.report.pages import render
from gigatile.report.paper import difference_of, methods_of, p_value, write_comparison
from gigatile.studies.results import StudyResults
from gigatile.tables import write_table

TEMPLATE = Path(__file__).parent / "templates" / "study.html.j2"


def write_results(results: StudyResults, compared: RunsCompared | None, folder: Path) -> Path:
    """Write the files, the page last; return its path.

    Args:
        results: of the study.
        compared: the tested variants; None: there is only one.
        folder: of the study.
    """
    rows = [
        [variant.name, run.run, run.seed, run.fold, run.value, run.epoch]
        for variant in results.variants
        for run in variant.runs
    ]
    header = ("variant", "run", "seed", "fold", "value", "epoch")
    write_table(
        folder / "study.tsv", header, [["" if v is None else v for v in row] for row in rows]
    )
    write_model(folder / "study.json", results)
    if compared:
        write_comparison(compared, folder / "comparison")
    page = folder / "index.html"
    write_text(
        page,
        render(
            TEMPLATE,
            results=results,
            compared=compared,
            methods=methods_of(compared).split("\n") if compared else [],
            difference=difference_of,
            p=p_value,
        ),
    )
    return page
