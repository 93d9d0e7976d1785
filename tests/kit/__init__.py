"""Shared by several test folders: data, servers, vocabularies, random walks, the level of a run."""
