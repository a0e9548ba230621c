"""Numbers and times to events, predicted from the embeddings of a slide's tiles."""
