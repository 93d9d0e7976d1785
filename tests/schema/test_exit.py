"""Process exit while a schema that was given up is still compiling."""

import subprocess
import sys

SCRIPT = """
import json
from constrained_k2 import Compiler, SchemaTooCostly, Vocabulary
parts = {f"p{n}": {"patternProperties": {f"^{n}a": {"type": "string"}, f"b{n}$": {"type": "string"}}} for n in range(200)}
compiler = Compiler(Vocabulary.of_bytes(), compile_seconds=0.1)
try:
    compiler.grammar(json.dumps({"properties": parts}), "schema")
except SchemaTooCostly as error:
    print(error)
"""


def test_the_process_exits_cleanly() -> None:
    """Native code that returns to a finished interpreter is a segmentation fault."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert "takes too long" in ended.stdout
    assert ended.returncode == 0, ended.stderr
