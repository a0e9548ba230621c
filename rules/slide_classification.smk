# Classification of whole slides.


include: "whole_slides.smk"


VALIDATED = []


include: "slide_maps.smk"


# The files of the evaluation and of the prediction that the pages show.
EVALUATED = [*rules.evaluate.output, *rules.evaluate.input.scored]
PREDICTED = [*rules.predict.output, *rules.predict.input.scored]


include: "slide_figures.smk"
