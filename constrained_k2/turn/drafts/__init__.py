"""Draft tokens for speculative decoding, from a call's grammar and schema and from the prompt."""
