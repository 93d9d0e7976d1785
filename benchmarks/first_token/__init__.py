"""Time from the HTTP request to the first token, for tools that the server has never seen."""
