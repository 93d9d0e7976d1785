"""Draft tokens for speculative decoding, guessed from a call's grammar and schema. Wrong guesses are rejected."""
