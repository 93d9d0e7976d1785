"""The places of arrays whose items are compared, and the items that one of them has so far."""

from collections.abc import Mapping

from constrained_k2.engines.llguidance.written.language import ItemLanguage
from constrained_k2.engines.llguidance.written.texts import Identity, WrittenTexts, identity_of
from constrained_k2.engines.llguidance.written.tokens import WrittenTokens
from constrained_k2.engines.llguidance.written.words import WrittenWords
from constrained_k2.formats.kimi_k3 import escape
from constrained_k2.grammar.lark.places import NOWHERE, Places
from constrained_k2.grammar.lark.unique_items import UniqueItems


class WrittenItems:
    """The items that one array has so far: ``strings`` if these may always go on, ``words`` for all others."""

    __slots__ = ("strings", "words")

    def __init__(self, strings: WrittenTexts | None, words: WrittenWords | None) -> None:
        self.strings = strings
        self.words = words

    @property
    def is_exhausted(self) -> bool:
        """True if no other item is left."""
        return self.strings is None and self.words is not None and self.words.is_spent(b"")


class ItemPlaces:
    """The places of one grammar. Shared by its calls.

    Raises:
        SchemaTooCostly: LLGuidance cannot read the numbers and words of an array.
    """

    def __init__(self, places: Places, tokens: WrittenTokens, *, is_xml: bool) -> None:
        self.root = places.root
        self._tokens = tokens
        self._places = places.places
        self._keys: list[Mapping[Identity, int]] = []
        for number, place in enumerate(places.places):
            spelled = escape if is_xml and number == places.root else str
            self._keys.append(
                {
                    identity_of(spelled(key).encode("utf-8", "surrogatepass")): child
                    for key, child in place.keys.items()
                    if child != place.extra
                }
            )
        specs = {place.unique: None for place in places.places if place.unique is not None}
        self._languages = {spec: ItemLanguage(spec.lark) for spec in specs if spec.lark}

    @property
    def cost_bytes(self) -> int:
        """Estimated memory of what finds the items that are left to write."""
        return sum(language.cost_bytes for language in self._languages.values())

    def of_key(self, place: int, key: Identity) -> int:
        """Return the place of the value under a key."""
        return NOWHERE if place == NOWHERE else self._keys[place].get(key, self._places[place].extra)

    def of_item(self, place: int, index: int) -> int:
        """Return the place of an item of an array."""
        if place == NOWHERE:
            return NOWHERE
        found = self._places[place]
        return found.prefix[index] if index < len(found.prefix) else found.rest

    def items(self, place: int) -> WrittenItems | None:
        """Return the items of a new array; None if they are not compared."""
        spec: UniqueItems | None = None if place == NOWHERE else self._places[place].unique
        if spec is None:
            return None
        language = self._languages.get(spec)
        return WrittenItems(
            WrittenTexts(self._tokens.in_json) if spec.has_strings else None,
            None if language is None else WrittenWords(language, self._tokens),
        )
