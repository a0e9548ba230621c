"""A bundle: one folder with everything that prediction with a trained model needs."""
