"""The texts and markers that end a call or an answer soonest, by the grammar's shapes."""
