"""The viewer of slides: a page that the server offers, with deep-zoom tiles and layers."""
