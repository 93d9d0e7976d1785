"""Regexes for RFC 3339 dates (that exist), times (with leap seconds), date-times and durations.

A date-time allows only the 27 leap seconds that were announced. The year 0000 is left out: RFC 3339 has it, but
``datetime.date.fromisoformat``, jsonschema and pydantic refuse it.
"""

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_HOUR, _MINUTE = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_TIME = f"{_HOUR}:{_MINUTE}:{_MINUTE}" r"(?:\.[0-9]+)?" f"(?:[zZ]|[+-]{_HOUR}:{_MINUTE})"
_LEAP = r":60(?:\.[0-9]+)?"
_JUNE = (1972, 1981, 1982, 1983, 1985, 1992, 1993, 1994, 1997, 2012, 2015)
_DECEMBER = (*range(1972, 1980), 1987, 1989, 1990, 1995, 1998, 2005, 2008, 2016)
# A leap second is 23:59:60 in UTC. West of UTC, the hours of time and offset add up to 23, their minutes to 59; east of
# it, on the next day, the offset is one minute ahead of the time. Hours and minutes are two patterns that must both
# match: a single one would have 1,440 cases.
_SAME_DAY = f"23:59{_LEAP}(?:[zZ]|[+]00:00)|" + "|".join(
    f"{hour:02}:{_MINUTE}{_LEAP}-{23 - hour:02}:{_MINUTE}" for hour in range(24)
)
_NEXT_DAY = "|".join(
    [f"{hour:02}:59{_LEAP}[+]{hour + 1:02}:00" for hour in range(23)]
    + [f"{hour:02}:{_MINUTE}{_LEAP}[+]{hour:02}:(?:0[1-9]|[1-5][0-9])" for hour in range(24)]
)
_MINUTES = f"{_MINUTE}:{_MINUTE}[.zZ+-].*|59{_LEAP}(?:[zZ]|[+-]{_HOUR}:00)|" + "|".join(
    f"{minute:02}{_LEAP}(?:-{_HOUR}:{59 - minute:02}|[+]{_HOUR}:{minute + 1:02})" for minute in range(59)
)
_LAST_DAYS = "|".join([*(f"{year}-06-30" for year in _JUNE), *(f"{year}-12-31" for year in _DECEMBER)])
_FIRST_DAYS = "|".join([*(f"{year}-07-01" for year in _JUNE), *(f"{year + 1}-01-01" for year in _DECEMBER)])

DATE = (f"^{_DAY}$",)
TIME = (f"^(?:{_TIME}|{_SAME_DAY}|{_NEXT_DAY})$", f"^{_HOUR}:(?:{_MINUTES})$")
"""The day is unknown, so a leap second is allowed at the end of any UTC day."""
DATE_TIME = (
    f"^(?:{_DAY}[tT]{_TIME}|(?:{_LAST_DAYS})[tT](?:{_SAME_DAY})|(?:{_FIRST_DAYS})[tT](?:{_NEXT_DAY}))$",
    f"^[0-9-]{{10}}[tT]{_HOUR}:(?:{_MINUTES})$",
)
"""With the 27 leap seconds from 1972 to 2016, the last one announced so far."""

_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
DURATION = (f"^P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:{_CLOCK})?|{_CLOCK})$",)
