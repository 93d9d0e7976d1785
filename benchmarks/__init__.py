"""Benchmarks, run from a clone with ``python -m benchmarks.NAME``; the wheel does not contain them."""
