"""Parses regexes of schemas and clients' grammars, translates them, and runs them as lazy DFAs.

``tree`` parses a pattern, ``unfolding`` removes its anchors and back-references, and ``translation`` writes it for a
grammar. ``states`` and ``string_states`` run it on a prefix, ``completions`` finds the shortest completion.
"""
