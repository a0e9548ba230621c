"""The report of an instance segmentation."""
