"""Classification of whole slides: a slide has one label, and its tiles have none."""
