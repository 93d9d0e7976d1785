"""Regular expressions of schemas: parsed, written for a grammar, and followed state by state.

``tree`` parses a pattern. ``ways``, ``parts`` and ``assertions`` write it without look-around and anchors, and
``translation`` is what grammars ask for. ``states`` and ``string_states`` follow a text, ``rests`` finds its shortest end.
"""
