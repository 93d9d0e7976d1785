"""The engines' own JSON Schema converters, as they come: what our grammars are measured against, and nothing else."""

import json

import llguidance
import xgrammar

from constrained_k2.engines.llguidance import LLGuidanceGrammar, MaskThreads
from constrained_k2.engines.llguidance_grammar import GrammarText
from constrained_k2.engines.llguidance_tokenizer import plain_tokenizer
from constrained_k2.engines.state_cache import StateCache
from constrained_k2.engines.xgrammar import XGrammarGrammar
from constrained_k2.engines.xgrammar_worker import grammar_compiler
from constrained_k2.schema.coverage import Coverage
from constrained_k2.vocabulary import Vocabulary


class LLGuidanceOwn:
    """LLGuidance's converter with its defaults.

    Args:
        vocabulary: The vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = plain_tokenizer(vocabulary, vocabulary.format.call_end)
        self._no_states = StateCache(vocabulary, 0)

    def compile(self, schema: str) -> LLGuidanceGrammar:
        """Compile a schema.

        Raises:
            ValueError: LLGuidance refuses it.
        """
        text = llguidance.LLMatcher.grammar_from_json_schema(json.loads(schema))
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        source = GrammarText(text, Coverage("llguidance"), plan=None)
        return LLGuidanceGrammar(self._tokenizer, source, MaskThreads(1), self._no_states)


class XGrammarOwn:
    """xgrammar's converter as vLLM calls it, but that open objects stay open (``strict_mode`` closes them).

    Args:
        vocabulary: The vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [vocabulary.ordinary_bytes(token) or b"\xff<special_%d>" % token for token in range(vocabulary.size)]
        self._encode = vocabulary.encode
        self._compiler: xgrammar.GrammarCompiler = grammar_compiler(tokens, vocabulary.format.call_end)

    def compile(self, schema: str) -> XGrammarGrammar:
        """Compile a schema.

        Raises:
            RuntimeError: xgrammar refuses it.
        """
        compiled = self._compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)
        return XGrammarGrammar(compiled, schema, Coverage("xgrammar"), self._encode)
