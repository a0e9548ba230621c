"""The report: pages that physicians read and a reviewer checks, each a file that needs no other.

`cohort_report` writes the report of a run on slides, `prediction_report` the pages of new slides;
`case_report` and `case_predictions` write those of volumes, and are imported by their own names, so
that pages of slides do not depend on the code of volumes. Below them, `inputs` reads and checks
what the earlier stages left, the `*_page`, `*_index`, `*_cohort` and `*_section` modules turn it
into what a template shows, and `pages` renders.
"""

from gigatile.report.cohort_report import ReportFiles, write_report
from gigatile.report.prediction_report import PredictionFiles, write_prediction_pages

__all__ = ["PredictionFiles", "ReportFiles", "write_prediction_pages", "write_report"]
