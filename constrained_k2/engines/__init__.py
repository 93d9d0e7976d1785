"""Grammar engines: they match the arguments of a call against one tool's schema."""
