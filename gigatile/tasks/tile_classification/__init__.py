"""Classification of slides by their tiles: every tile has the label of its slide."""
