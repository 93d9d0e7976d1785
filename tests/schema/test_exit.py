"""A process that ends while a schema is still being compiled, long after its time was up."""

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


def test_it_ends_well() -> None:
    """Native code that returned to an interpreter that is gone ended it with a segmentation fault."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert "takes too long" in ended.stdout
    assert ended.returncode == 0, ended.stderr
