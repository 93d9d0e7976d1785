"""Converts expanded schemas into grammar plans: plain data, from which Lark text is written."""
