"""The engines' own JSON Schema converters, as they come: what our grammars are measured against, and nothing else."""

import json

import llguidance

from constrained_k2.engines.llguidance import LLGuidanceEngine, LLGuidanceGrammar
from constrained_k2.engines.llguidance_grammar import GrammarText
from constrained_k2.schema.coverage import Coverage
from constrained_k2.vocabulary import Vocabulary


class LLGuidanceOwn:
    """LLGuidance's converter with its defaults.

    Args:
        vocabulary: The vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = LLGuidanceEngine(vocabulary).tokenizer

    def compile(self, schema: str) -> LLGuidanceGrammar:
        """Compile a schema.

        Raises:
            ValueError: LLGuidance refuses it.
        """
        text = llguidance.LLMatcher.grammar_from_json_schema(json.loads(schema))
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return LLGuidanceGrammar(self._tokenizer, GrammarText(text, Coverage("llguidance"), any_order=False))
