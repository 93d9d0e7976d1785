"""The cost of admitting tools that the server has not seen before."""
