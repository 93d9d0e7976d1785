"""What the mask changed: the token a model wanted, the one it wrote, and the place and keyword that decided it."""
