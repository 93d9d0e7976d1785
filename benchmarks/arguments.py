"""Command-line arguments that several benchmarks have."""

import argparse
from pathlib import Path

from scripts.fetch_data import data_folder

SMALL = "if it is missing, a small vocabulary and the package's own tools are used"
"""What host and GPU benchmarks do without the data."""


def add_shared(parser: argparse.ArgumentParser, fallback: str = "") -> None:
    """Add ``--shared``, the folder that scripts/fetch_data.py fills; ``fallback`` says what happens without it."""
    text = "folder with the real vocabulary, public tools and schemas (default: %(default)s)"
    parser.add_argument("--shared", type=Path, default=data_folder(), help=f"{text}; {fallback}" if fallback else text)
