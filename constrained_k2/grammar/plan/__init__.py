"""The plan of a grammar: the alternatives of each schema node as values, before anything is printed."""
