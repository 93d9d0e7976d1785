"""JSON Schema before any engine sees it.

``screen`` bounds what a schema may cost; ``document`` resolves its references; ``keywords`` and ``opposites`` say what
each keyword leaves of each JSON type, and ``normalize`` puts that together into unions of ``shapes``, which a grammar
can be written of.
"""
