"""Train a convolutional encoder on whole slides with exact gradients and bounded memory.

The encoder sees a slide window by window. The windows overlap by the receptive field of its layers,
so its embeddings, and the gradients of its weights, are those of the whole picture.
"""
