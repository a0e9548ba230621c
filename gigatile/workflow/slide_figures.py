"""Operating points, as the rules need them."""

from gigatile.settings.evaluate import EvaluationSettings


def wanted_rates(settings: EvaluationSettings) -> str:
    """Return the wanted sensitivities and specificities, as options of the command."""
    options = []
    for name, rates in (
        ("--sensitivity", settings.sensitivities),
        ("--specificity", settings.specificities),
    ):
        if rates:
            options += [name, *map(repr, rates)]
    return " ".join(options)
