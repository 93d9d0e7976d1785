"""The process that takes HTTP requests."""
