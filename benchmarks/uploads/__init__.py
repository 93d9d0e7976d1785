"""Counts the bytes that each step of the logits-processor route copies to the device; needs no device."""
