"""``constrained-k2 bench``: what constraining costs on the host, ours and the engines' own whole-format grammars."""
