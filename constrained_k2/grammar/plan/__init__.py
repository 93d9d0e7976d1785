"""Plans grammars: the alternatives of each schema node as plain data, from which Lark text is written."""
