"""The report: pages that pathologists read and a reviewer checks, each a file that needs no other.

`cohort_report` writes the report of a run, `prediction_report` the pages of new slides. Below them,
`inputs` reads and checks what the earlier stages left, the `*_page` and `*_section` modules turn it
into what a template shows, and `pages` renders.
"""

from gigatile.report.cohort_report import ReportFiles, write_report
from gigatile.report.prediction_report import PredictionFiles, write_prediction_pages

__all__ = ["PredictionFiles", "ReportFiles", "write_prediction_pages", "write_report"]
