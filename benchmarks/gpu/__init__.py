"""Kernels, uploads and whole engines on a GPU, in one command: ``python -m benchmarks.gpu``."""
