"""Parses the regexes of schemas, translates them for grammars, and runs them as lazily built DFAs.

``tree`` parses a pattern, ``unfolding`` removes its anchors and back-references, and ``translation`` writes it for a
grammar. ``states`` and ``string_states`` run it on a prefix, ``completions`` finds the shortest completion.
"""
