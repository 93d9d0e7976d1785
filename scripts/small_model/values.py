# ruff: noqa: SIM905 - lists of words read best as text
"""Draws the values that requests name and calls must copy, each either for training or held out."""

import datetime as dt
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HELD_OUT_SHARE = 5
"""One in so many values is held out: training never uses it."""

_CITIES = (
    "Amsterdam Ankara Athens Auckland Bangkok Beijing Berlin Bogota Boston Brussels Budapest Cairo Chicago Dallas "
    "Delhi Denver Dublin Geneva Hamburg Hanoi Havana Helsinki Istanbul Jakarta Kyoto Lagos Lima Lisbon London Lyon "
    "Madrid Manila Miami Milan Montreal Moscow Mumbai Munich Nairobi Naples Osaka Oslo Paris Prague Quito Riga Rome "
    "Seattle Seoul Shanghai Singapore Sofia Stockholm Sydney Tallinn Tokyo Toronto Turin Vienna Vilnius Warsaw Zagreb "
    "Zurich"
).split()
_NAMES = (
    "Ada Aiko Alan Amir Ana Anton Bea Boris Carla Chen Clara Dana David Diego Elena Elif Emil Erik Farah Felix Frida "
    "Gita Hana Hugo Ines Ivan Jana Jonas Julia Kai Karim Kenji Lars Lea Lina Luca Maya Mei Milan Mira Nadia Nils Nora "
    "Olga Omar Oscar Paula Petra Priya Rania Raul Rosa Sami Sara Sven Tara Theo Tom Uma Vera Viktor Wei Yara Yuki Zoe"
).split()
_QUALITIES = (
    "annual budget client coastal design early final garden global kitchen legal launch market mobile monthly network "
    "office partner payment pricing product quality quarterly release regional research sales security spring staff "
    "student summer supplier team training travel weekly winter"
).split()
_THINGS = (
    "agenda analysis audit briefing call checklist contract dinner draft estimate forecast handbook interview invoice "
    "lunch meeting memo notes offer outline plan policy presentation proposal report retrospective review roadmap "
    "schedule seminar session slides summary survey talk update workshop"
).split()
_STARTS = (
    "ba be bo bra ca co da de do fa fe ga go ha he ja ka ki la le lo ma me mo na no pa pe ra ro sa se ta to va vi"
).split()
_MIDDLES = ("la le li lo mi na ni no ra ri ro sa si ta ti va").split()
_ENDS = ("ck den din gan ham ka la len lin mar na nor rin ro sen ski son ta tan ton ven vik").split()
_STREETS = ("Oak Elm Mill Park High Lake Hill King Rose Pine").split()
_DOMAINS = ("acme.com mail.org corp.net post.io").split()
_LETTERS = "ABCDEFGHIJKLMNOPRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its text in a request, and its value in the call's arguments."""

    text: str
    argument: Any


class Draw:
    """Draws values of the training side, or of the held-out side, of the split."""

    def __init__(self, chance: random.Random, *, held_out: bool) -> None:
        self.chance = chance
        self.held_out = held_out

    def split(self, make: Callable[[], str]) -> str:
        """Make texts until one is on this side of the split."""
        while True:
            text = make()
            if is_held_out(text) == self.held_out:
                return text

    def kind(self, kind: str, **options: Any) -> Value:
        """Draw a value of a kind: the name of a method below, without its underscore."""
        value: Value = getattr(self, f"_{kind}")(**options)
        return value

    def _same(self, make: Callable[[], str]) -> Value:
        text = self.split(make)
        return Value(text, text)

    def _invented(self) -> str:
        middle = self.chance.choice(_MIDDLES) if self.chance.random() < 0.6 else ""
        return (self.chance.choice(_STARTS) + middle + self.chance.choice(_ENDS)).capitalize()

    def _either(self, known: Sequence[str]) -> str:
        return self.chance.choice(known) if self.chance.random() < 0.5 else self._invented()

    def _city(self) -> Value:
        return self._same(lambda: self._either(_CITIES))

    def _name(self) -> Value:
        return self._same(lambda: f"{self._either(_NAMES)} {self._invented()}")

    def _word(self) -> Value:
        return self._same(lambda: self._invented().lower())

    def _title(self) -> Value:
        return self._same(lambda: f"{self.chance.choice(_QUALITIES)} {self.chance.choice(_THINGS)}")

    def _email(self) -> Value:
        return self._same(lambda: f"{self._either(_NAMES).lower()}@{self.chance.choice(_DOMAINS)}")

    def _airport(self) -> Value:
        return self._same(lambda: "".join(self.chance.choices(_LETTERS, k=3)))

    def _code(self) -> Value:
        return self._same(lambda: f"{self.chance.choice(_LETTERS)}-{self.chance.randint(100, 999)}")

    def _date(self) -> Value:
        first = dt.date(2025, 1, 1)
        return self._same(lambda: str(first + dt.timedelta(self.chance.randrange(730))))

    def _time(self) -> Value:
        return self._same(lambda: f"{self.chance.randint(7, 20):02}:{self.chance.choice((0, 15, 30, 45)):02}")

    def _whole(self, least: int, most: int) -> Value:
        number = self.chance.randint(least, most)  # too few to split
        return Value(str(number), number)

    def _amount(self) -> Value:
        text = self.split(
            lambda: f"{self.chance.randint(5, 990)}.{self.chance.randint(1, 9)}{self.chance.randint(1, 9)}"
        )
        return Value(text, float(text))

    def _said(self, words: Mapping[str, Any]) -> Value:
        text = self.chance.choice(list(words))
        return Value(text, words[text])

    def _few(self) -> int:
        return self.chance.choice((1, 1, 2))

    def _people(self) -> Value:
        names = [self.kind("name").text for _ in range(self._few())]
        return Value(" and ".join(names), [{"name": name} for name in names])

    def _items(self) -> Value:
        found = [(self.kind("whole", least=1, most=20), self.kind("code")) for _ in range(self._few())]
        arguments = [{"sku": code.text, "quantity": count.argument} for count, code in found]
        return Value(" and ".join(f"{count.text} x {code.text}" for count, code in found), arguments)

    def _address(self) -> Value:
        street = self.split(lambda: f"{self.chance.randint(1, 99)} {self.chance.choice(_STREETS)} Street")
        city = self.kind("city").text
        return Value(f"{street}, {city}", {"street": street, "city": city})


def is_held_out(text: str) -> bool:
    """True if a value, or a combination written as text, is held out."""
    return zlib.crc32(text.encode()) % HELD_OUT_SHARE == 0
