"""Grammar engines: they match a call's arguments or an answer against a schema or a client's grammar."""
