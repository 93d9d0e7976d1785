"""What a writer says of a shape that has no grammar: the nearest one that has."""

from constrained_k2.schema.shapes import Shape


class CannotWrite(Exception):
    """A shape has no grammar here.

    Args:
        reason: Why.
        keywords: Those that are not kept if ``wider`` is written in its place.
        wider: A shape that holds all that the shape does.
    """

    def __init__(self, reason: str, keywords: tuple[str, ...], wider: Shape) -> None:
        super().__init__(reason)
        self.keywords = keywords
        self.wider = wider
