"""Small scripts over client libraries, run by ``python -m tests.clients.scripts``: see ``test_scripts.py``."""
