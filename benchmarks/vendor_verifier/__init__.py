"""The schema suite of Moonshot's Kimi Vendor Verifier, unchanged, on a server with an untrained model."""
