"""The demo cohort: synthetic lung slides, so that the whole workflow runs without anyone's data.

`cohort` says who is in it, `tissue` draws a slide, `svs` writes it as a scanner would.
"""
