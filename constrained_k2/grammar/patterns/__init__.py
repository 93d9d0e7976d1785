"""Regular expressions of schemas: parsed, written for a grammar, and followed state by state.

``tree`` parses a pattern, ``ways`` removes its anchors and back-references, and ``translation`` writes it for a
grammar. ``states`` and ``string_states`` follow a text, ``rests`` finds its shortest end.
"""
