"""Code that several vLLM processes share: settings, requests' matchers, examined rows, counters."""
