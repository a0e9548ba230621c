"""Prediction of a number, or of the risk of an event, from whole slides, trained end to end."""

from dataclasses import replace

from gigatile.tasks.slide_classification.definition import TASK as WHOLE_SLIDES
from gigatile.tasks.slide_outcome.definition import TASK as OUTCOMES
from gigatile.tasks.slide_outcome.definition import read_outcomes

TASK = replace(
    WHOLE_SLIDES,
    description="predicts a number or the time to an event of whole slides, trained end to end.",
    columns=OUTCOMES.columns,
    read_sheet=read_outcomes,
    classifies_slides=False,
    predicts_outcomes=True,
    truth=OUTCOMES.truth,
    losses=(),
    headline=OUTCOMES.headline,
    compares=False,
    train_options=frozenset({"views", "slides_per_patient"}),
)
