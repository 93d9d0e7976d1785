"""Host cost of constraining: this package compared with the engines' builtin whole-format grammars."""
