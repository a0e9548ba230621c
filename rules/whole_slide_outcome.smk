# Prediction of numbers and of times to events of whole slides.


include: "whole_slides.smk"


# The risk that divides the test patients into two groups is the median of the validation split.
VALIDATED = f"{RUN}/validation/slides.tsv"


include: "slide_maps.smk"
include: "outcome_figures.smk"
