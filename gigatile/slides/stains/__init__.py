"""The methods of stain normalisation, one per module."""
