"""A small trained model of Kimi K2's shape that answers tool requests mostly right, and the requests to ask it."""
