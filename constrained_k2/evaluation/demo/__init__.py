"""The demo model: a small trained model of Kimi K2's shape, its held-out requests, and their A/B run."""
