"""Grammar engines: what matches the arguments of a call against one tool's schema."""
