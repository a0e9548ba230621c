"""To come."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add."""


def run(args: argparse.Namespace) -> None:
    """Run."""
