"""The engines' builtin JSON Schema converters with their defaults."""

import json

import llguidance
import xgrammar

from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.grammar_text import GrammarText
from constrained_k2.engines.llguidance.mask_cache import MaskCache
from constrained_k2.engines.llguidance.mask_threads import MaskThreads
from constrained_k2.engines.llguidance.tokenizer import build_tokenizer
from constrained_k2.engines.xgrammar.engine import XGrammarGrammar
from constrained_k2.engines.xgrammar.worker import grammar_compiler
from constrained_k2.schema.coverage import Coverage
from constrained_k2.vocabulary.vocabulary import Vocabulary


class LLGuidanceBuiltin:
    """LLGuidance's converter with its defaults."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = build_tokenizer(vocabulary, vocabulary.format.call_end)
        self._no_cache = MaskCache(vocabulary, 0, self._tokenizer)

    def compile(self, schema: str) -> LLGuidanceGrammar:
        """Compile a schema.

        Raises:
            ValueError: LLGuidance rejects it.
        """
        return self.compile_grammar(llguidance.LLMatcher.grammar_from_json_schema(json.loads(schema)))

    def compile_grammar(self, text: str) -> LLGuidanceGrammar:
        """Compile a schema that LLGuidance has prepared, with options of its own.

        Raises:
            ValueError: LLGuidance rejects it.
        """
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        source = GrammarText(text, Coverage("llguidance"), model=None)
        return LLGuidanceGrammar(self._tokenizer, source, MaskThreads(1), self._no_cache)


class XGrammarBuiltin:
    """xgrammar's converter as vLLM calls it, but with open objects (``strict_mode`` closes them)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [vocabulary.ordinary_bytes(token) or b"\xff<special_%d>" % token for token in range(vocabulary.size)]
        self._encode = vocabulary.encode
        self._compiler: xgrammar.GrammarCompiler = grammar_compiler(tokens, vocabulary.format.call_end)

    def compile(self, schema: str) -> XGrammarGrammar:
        """Compile a schema.

        Raises:
            RuntimeError: xgrammar rejects it.
        """
        compiled = self._compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)
        return XGrammarGrammar(compiled, schema, Coverage("xgrammar"), self._encode, None)
