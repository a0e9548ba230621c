"""The settings: a typed model for each section of `config.yaml`, a module for each.

The models are the only definition. `config.yaml` is written from them (`scripts/write_config.py`),
a run's settings are checked against them, and every command gets its own section as canonical JSON,
so that a stage depends on the settings that it reads and on nothing else. It imports only the
modules of these sections, so it does not depend on the code of the others.
"""
