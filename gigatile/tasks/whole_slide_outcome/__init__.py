"""Numbers and times to events, predicted from the pixels of whole slides."""
