"""The report of predicted numbers and times to events."""
