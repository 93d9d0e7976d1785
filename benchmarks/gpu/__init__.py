"""Kernels and uploads on a GPU, in one command: ``python -m benchmarks.gpu``."""
