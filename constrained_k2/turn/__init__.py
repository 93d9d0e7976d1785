"""The automaton of one turn: phases, call ids, the matcher, batches, drafts and the finish budget."""
