"""Regular expressions of schemas: parsed, written for a grammar, and followed state by state.

``tree`` parses a pattern. ``ways`` and ``assertions`` write it without anchors and look-ahead, and grammars
ask ``translation`` for that. ``states`` and ``string_states`` follow a text, ``rests`` finds its shortest end.
"""
