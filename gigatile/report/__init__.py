"""Reports: pages for physicians and reviewers, each a file that loads nothing else.

`builder` writes the report of a run and `predictions` the pages of new slides or cases, for every
task: `task_report.TaskReport` is what a task provides (see `gigatile.tasks`). `leakage` checks
every run. Slides and volumes have their pages and sections in `slides` and `cases`.
"""

from gigatile.report.builder import write_report
from gigatile.report.predictions import write_prediction_pages

__all__ = ["write_prediction_pages", "write_report"]
