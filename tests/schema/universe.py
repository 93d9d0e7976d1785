"""Small JSON values of every kind, among which shapes and grammars are compared with jsonschema exhaustively."""

from itertools import product
from typing import Any

SCALARS: list[Any] = [None, True, False, 0, 1, 2, 3, -1, 1.5, 0.25, "", "a", "b", "ab", "abc", "2024-02-29", '"']
ARRAYS: list[Any] = [list(items) for size in range(4) for items in product([1, "a", None], repeat=size)]
OBJECTS: list[Any] = [
    {key: value for key, value in zip("abc", values, strict=True) if value != "absent"}
    for values in product(["absent", 1, "a", None], repeat=3)
]
NESTED: list[Any] = [[[]], [[1], {}], {"a": {"a": 1}}, {"a": []}, {"d": 1}, {"d": 1, "a": 1, "b": "a"}, {"": 1}]
UNIVERSE = [*SCALARS, *ARRAYS, *OBJECTS, *NESTED]
