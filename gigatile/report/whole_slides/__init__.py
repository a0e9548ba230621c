"""The parts of a report on a classification of whole slides."""
