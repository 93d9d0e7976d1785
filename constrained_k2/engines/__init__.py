"""Grammar engines (LLGuidance, xgrammar): match call arguments and answers, and mask their tokens."""
