"""Drops object alternatives that another one subsumes, if the union has eight or more objects."""

from constrained_k2.schema.shapes import Object, Shape, Shapes

_FEW = 8  # objects; with fewer, comparing costs more than it saves


def absorbed(shapes: Shapes) -> Shapes:
    """The union without object shapes that have all the constraints of another object shape in it."""
    objects = [shape for shape in shapes if isinstance(shape, Object)]
    if len(objects) < _FEW:
        return shapes
    objects.sort(key=_demands)
    kept: list[Object] = []
    for shape in objects:
        if not _is_part_of_any(shape, kept):
            kept.append(shape)
    left: set[Shape] = set(kept)
    return tuple(shape for shape in shapes if not isinstance(shape, Object) or shape in left)


def _demands(shape: Object) -> int:
    return len(shape.maps) + len(shape.required) + len(shape.names) + len(shape.wanted)


def _is_part_of_any(shape: Object, others: list[Object]) -> bool:
    """True if ``shape`` has all the constraints of at least one of the objects ``others``."""
    required, maps = shape.required, shape.maps
    for other in others:  # in one loop: there are millions of pairs
        if (
            other.required <= required
            and other.maps <= maps
            and other.names <= shape.names
            and other.wanted <= shape.wanted
            and other.fewest <= shape.fewest
            and (other.most is None or (shape.most is not None and shape.most <= other.most))
            and other.declared == shape.declared
        ):
            return True
    return False
