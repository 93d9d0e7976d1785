"""Explains which tokens a mask overrode in a turn: the path in the arguments and the keyword to blame."""
