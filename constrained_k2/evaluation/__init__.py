"""Evaluates servers by their answers: A/B runs, and the doctor's checks of a live server."""
