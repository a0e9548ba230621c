"""The names of the files of a trained model."""

MODEL, DESCRIBED = "model.keras", "settings.json"
