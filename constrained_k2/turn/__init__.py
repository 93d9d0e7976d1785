"""The token automaton of one assistant message (a turn), with its masks, draft tokens and budgets."""
