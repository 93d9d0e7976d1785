"""Guessing the next tokens of a call from its grammar, for speculative decoding: a guess is only ever verified."""
