"""Grammar engines (LLGuidance, xgrammar): compile schemas; mask tokens of arguments and answers."""
