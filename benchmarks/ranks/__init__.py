"""Servers of several ranks and processes: the same greedy requests must get the answers of one rank."""
