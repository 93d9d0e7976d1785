"""The A/B evaluation: sends the same requests to several arms and compares the answers in pairs.

An arm is a server, a model and the fields that are added to every request. The figures are those of K2 Vendor Verifier
and some that it lacks.
"""
