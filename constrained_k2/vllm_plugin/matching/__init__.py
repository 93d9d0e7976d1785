"""Makes and guards a request's matcher wherever masks are computed, in the engine core or in the workers."""
