"""Rules that ruff and mypy do not have: plain words, imports one way, one home for the markers."""
