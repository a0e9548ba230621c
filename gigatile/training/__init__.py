"""Training: the order of samples, the batches of a rank, models, and one loop for every task."""
