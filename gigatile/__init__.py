"""Gigatile: from gigapixel slides to trained models and reports that people trust.

The library behind the workflow, a package for each thing that it knows about. It knows nothing of
Snakemake: every stage is a function from files to files, called by one command in `scripts/`.
"""

import os

# ONNX Runtime's official builds send telemetry unless this is set before it is imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# Without AVX-512, TensorFlow does not use oneDNN by default; the convolutions of volumes and their
# gradients then take three to seven times as long.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
