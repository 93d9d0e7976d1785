"""Measures the right answers with undeclared keys allowed and forbidden."""
