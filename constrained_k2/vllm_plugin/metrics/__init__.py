"""Metric families, and how counts reach the process that shows them."""
