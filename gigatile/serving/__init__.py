"""The prediction server: TensorFlow Serving's REST interface for the models of bundles."""
