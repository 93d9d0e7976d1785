"""Runs coding agents against a server with this package, and records what they send and get."""
