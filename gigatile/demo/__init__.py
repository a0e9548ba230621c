"""Synthetic lung slides and brain volumes, to run the whole workflow without patient data.

Slides: `cohort` lists them, `tissue` renders a slide, `svs` writes it in the format of a scanner.
Volumes: `cases` lists them, `head` models a brain with a tumour, `volumes` scans it into files.
"""
