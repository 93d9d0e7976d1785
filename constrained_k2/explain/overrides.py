"""Finds, for each token of a turn that the mask forbade, its path in the arguments and the cause."""

from collections.abc import Mapping, Sequence

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.explain.blame import find_blame
from constrained_k2.explain.causes import Causes
from constrained_k2.explain.keywords import Cause
from constrained_k2.explain.position import Path
from constrained_k2.explain.replay import Recorder, Replay, recorder_of, with_recorder
from constrained_k2.explain.subject import DEFAULT_LIMITS, END, Budget, Exhausted, ExplainLimits, Subject
from constrained_k2.explain.view import Site
from constrained_k2.request.spec import ANY_OBJECT
from constrained_k2.schema.document import escape
from constrained_k2.turn.automaton import Automaton, TurnState
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_DEPTH = 1024
_BLANKS = frozenset(b" \t\r\n")
_BEGINS_VALUE = frozenset(b'"[-0123456789tfn')


def find_places(  # noqa: PLR0913 - what was written, and what was asked for
    compiled: CompiledToolCalls,
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    wanted: Mapping[int, int],
    *,
    in_reasoning: bool = False,
    limits: ExplainLimits = DEFAULT_LIMITS,
) -> dict[int, Site]:
    """The path and cause of each forbidden token of a turn, up to the limits, by the number of tokens before it.

    ``compiled`` is over the bytes of the model's format (:meth:`Vocabulary.of_bytes`); ``wanted`` maps the number of
    tokens before a forbidden token to that token.
    """
    first = {position: wanted[position] for position in sorted(wanted)[: limits.overrides]}
    explainer = _Explainer(compiled, vocabulary, limits, in_reasoning=in_reasoning)
    return explainer.places(list(token_ids), first) if first else {}


class _Explainer:
    """Explains the tokens of one turn, in its order."""

    def __init__(
        self, compiled: CompiledToolCalls, vocabulary: Vocabulary, limits: ExplainLimits, *, in_reasoning: bool
    ) -> None:
        self._compiled = compiled
        self._limits = limits
        self._budget = Budget(limits)
        self._replay = Replay(compiled, vocabulary, in_reasoning=in_reasoning)
        self._automaton = Automaton(compiled)
        self._causes = Causes(compiled)
        self._subjects: dict[str, Subject] = {}
        # A matcher that has accepted the first ``_fed`` symbols of the latest recorder; None if it rejects them.
        self._recorder: Recorder | None = None
        self._matcher: ArgumentMatcher | None = None
        self._fed = 0

    def places(self, token_ids: list[int], wanted: dict[int, int]) -> dict[int, Site]:
        """The path and cause of each forbidden token, by its index in the turn."""
        last, found = max(wanted), dict[int, Site]()
        state: TurnState | None = None
        for position, state in enumerate(self._replay.states(token_ids[: last + 1])):
            if position in wanted:
                found[position] = self._place(state, self._replay.symbols_of(wanted[position]))
            elif position & 0xFF == 0xFF and self._budget.is_spent:
                break
        phase = Phase.DONE if state is None else state.phase
        return {position: found.get(position) or Site(_name(phase), "", None, ()) for position in wanted}

    def _place(self, state: TurnState, symbols: tuple[int, ...]) -> Site:
        recorder = recorder_of(state)
        self._budget.begin_override()
        if recorder is not None and self._is_out_of_place(recorder, symbols[0]):
            return _located(state, recorder, *self._out_of_place(recorder, symbols[0]))
        try:
            return self._explained(state, recorder, symbols)
        except (Exhausted, ConstrainedK2Error):  # a limit of explaining, or a limit of the engine
            return _located(state, recorder, None if recorder is None else recorder.position.path(symbols[0]), ())

    def _is_out_of_place(self, recorder: Recorder, symbol: int) -> bool:
        """True if no schema lets a symbol follow a text; False also if that is not known without an engine."""
        if not recorder.name:
            return False
        if 0 <= symbol < 256:
            return (
                not (recorder.position.in_key and recorder.position.in_string)
                and self._is_json(recorder, symbol) is False
            )
        markers = self._compiled.vocabulary.format
        return symbol not in markers.argument_markers and (symbol != markers.call_end or not recorder.position.is_done)

    def _out_of_place(self, recorder: Recorder, symbol: int) -> tuple[Path, tuple[str, ...]]:
        """The path to the value of a symbol that no schema allows here, and the cause."""
        position = recorder.position
        path = position.path(symbol)
        path = path[:-1] if position.ends_scalar(symbol) else path
        if not 0 <= symbol < 256:
            return path, self._beyond_schema(recorder, symbol)
        is_value = not recorder.symbols and symbol in _BEGINS_VALUE
        blanks = symbol in _BLANKS and not position.in_string
        return path, ("type" if is_value else Cause.BLANKS if blanks else Cause.SYNTAX,)

    def _is_json(self, recorder: Recorder, byte: int) -> bool | None:
        """True if some schema lets a byte follow in some text, False if none does, None if that is not known."""
        position = recorder.position
        if recorder.name and not recorder.symbols and not position.is_xml and byte not in _BLANKS:
            return byte == ord("{")
        return position.may_follow(byte)

    def _explained(self, state: TurnState, recorder: Recorder | None, symbols: tuple[int, ...]) -> Site:
        self._budget.check()
        if recorder is not None and (
            len(recorder.symbols) > self._limits.text_bytes or recorder.position.depth > _MAX_DEPTH
        ):
            raise Exhausted
        count = self._count_legal(state, recorder, symbols)
        if count == len(symbols):
            path = None if recorder is None else recorder.position.path(symbols[0])
            return _located(state, recorder, path, (self._cause_of_legal(state, symbols),))
        ahead = state if recorder is None else with_recorder(state, recorder.copy())
        for symbol in symbols[:count]:
            after = self._replay.automaton.step(ahead, symbol)
            assert after is not None
            ahead = after
        recorder = recorder_of(ahead)
        if recorder is None:
            cause, tool = self._causes.cause(ahead, symbols[count])
            return Site(_name(state.phase), tool, None, (cause,))
        path, causes = self._in_text(ahead, recorder, symbols[count:])
        return _located(state, recorder, path, causes)

    def _count_legal(self, state: TurnState, recorder: Recorder | None, symbols: tuple[int, ...]) -> int:
        """The number of legal symbols before the first forbidden one."""
        matcher = None if recorder is None else self._matcher_after(recorder)
        if matcher is not None:
            state = state._replace(arguments=matcher)
        accepted = 0
        try:
            for number, symbol in enumerate(symbols):
                after = self._automaton.step(state, symbol)
                if after is None:
                    return number
                accepted += matcher is not None and after.arguments is matcher
                state = after
        finally:
            if matcher is not None:
                matcher.rollback(accepted)
        return len(symbols)

    def _matcher_after(self, recorder: Recorder) -> ArgumentMatcher:
        """The engine's matcher after the recorded text."""
        if self._recorder is not recorder:
            made = self._compiled.arguments(recorder.name) if recorder.name else self._compiled.answer()
            self._recorder, self._matcher, self._fed = recorder, made, 0
        while self._matcher is not None and self._fed < len(recorder.symbols):
            if not self._fed & 0xFF:
                self._budget.check()
            if not self._matcher.accept(recorder.symbols[self._fed]):
                self._matcher = None
            self._fed += 1
        if self._matcher is None:
            raise Exhausted
        return self._matcher

    def _cause_of_legal(self, state: TurnState, symbols: tuple[int, ...]) -> str:
        """The cause that forbids a token although its text is legal."""
        if self._compiled.spec.repeated_calls == "forbid":
            ends_call = symbols[0] == self._compiled.vocabulary.format.call_end
            if state.phase is Phase.TRANSITION or (state.phase is Phase.ARGUMENTS and ends_call):
                return Cause.REPEATED_CALL
        if state.arguments is not None and self._matcher is not None:
            forced = self._matcher.forced_tokens()
            length = min(len(forced), len(symbols))
            if length and tuple(forced[:length]) == symbols[:length]:
                return Cause.SPLIT
        return Cause.THINKING_BUDGET if state.phase is Phase.REASONING else Cause.TOKEN_LIMITS

    def _in_text(
        self, state: TurnState, recorder: Recorder, symbols: tuple[int, ...]
    ) -> tuple[Path | None, tuple[str, ...]]:
        """The path to the value that the first symbol belongs to, and the causes that forbid the symbol."""
        symbol, position = symbols[0], recorder.position
        path = position.path(symbol)
        is_text = 0 <= symbol < 256
        if is_text and position.in_key:
            key, keys = position.key_with(bytes(each for each in symbols if 0 <= each < 256))
            if key and any(each.startswith(key) for each in keys):
                return path, (Cause.REPEATED_KEY,)
        is_marker_of_text = bool(recorder.name) and symbol in self._compiled.vocabulary.format.argument_markers
        is_end = not is_text and self._ends(recorder, symbol)
        subject = self._subject(recorder)
        if is_text and subject is not None and not self._may_follow(subject, recorder, symbol):
            return self._out_of_place(recorder, symbol)
        if subject is not None and (is_text or is_marker_of_text or is_end):
            rest = _rest_of_key(symbols) if is_text and position.in_key else ()
            blame = find_blame(subject, position, path, recorder.symbols, END if is_end else symbol, rest)
            if blame is not None:
                return path[:-1] if position.ends_scalar(symbol) and blame.level < len(path) else path, blame.keywords
        if not is_text and state.phase not in {Phase.ARGUMENTS, Phase.ANSWER}:
            return None, (self._causes.cause(state._replace(arguments=None), symbol)[0],)
        return path[:-1] if position.ends_scalar(symbol) else path, self._beyond_schema(recorder, symbol)

    def _may_follow(self, subject: Subject, recorder: Recorder, byte: int) -> bool:
        """True if a byte may follow the recorded text under some schema."""
        known = self._is_json(recorder, byte)
        if known is not None:
            return known
        schema = ANY_OBJECT if subject.options.root == "object" else "{}"
        anything = Subject(schema, subject.options, self._compiled.vocabulary.format, self._budget)
        return anything.allows(recorder.symbols, byte, policy="allow") is not False

    def _ends(self, recorder: Recorder, symbol: int) -> bool:
        """True if a marker begins the end of a recorded text, rather than being part of it."""
        if recorder.name:
            return symbol == self._compiled.vocabulary.format.call_end and recorder.is_complete()
        return symbol in self._compiled.turn_table.sets[Phase.ANSWER]

    def _subject(self, recorder: Recorder) -> Subject | None:
        """The schema of a recorded text; None if the text has no schema."""
        found, answer = self._subjects.get(recorder.name), self._compiled.spec.answer
        if found is None:
            if not recorder.name and (answer is None or answer.kind != "json"):
                return None
            schema = answer.text if not recorder.name and answer is not None else self._compiled.schema(recorder.name)
            options = self._compiled.options if recorder.name else self._compiled.answer_options("json")
            found = Subject(schema, options, self._compiled.vocabulary.format, self._budget)
            self._subjects[recorder.name] = found
        return found

    def _beyond_schema(self, recorder: Recorder, symbol: int) -> tuple[str, ...]:
        """The cause that forbids a symbol if no keyword does."""
        markers, position = self._compiled.vocabulary.format, recorder.position
        if 0 <= symbol < 256:
            return () if recorder.name or self._subject(recorder) is not None else (Cause.ANSWER_FORMAT,)
        if recorder.symbols and position.in_string:
            return (Cause.MARKER_IN_STRING,)
        if recorder.name and symbol == markers.call_end:
            return (Cause.END_OF_CALL,)
        return (Cause.END_OF_TURN if symbol in markers.stop_ids else Cause.MARKER,)


def _located(state: TurnState, recorder: Recorder | None, path: Path | None, causes: tuple[str, ...]) -> Site:
    pointer = None if path is None else "".join(f"/{escape(str(part))}" for part in path)
    return Site(_name(state.phase), "" if recorder is None else recorder.name, pointer, causes)


def _rest_of_key(symbols: tuple[int, ...]) -> tuple[int, ...]:
    """The symbols after the first one up to the end of the key that it begins or belongs to."""
    rest = symbols[1:]
    return rest[: rest.index(ord('"')) + 1] if ord('"') in rest else rest


def _name(phase: Phase) -> str:
    return phase.name.lower()
