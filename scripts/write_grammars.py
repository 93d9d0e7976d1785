"""Write grammars/*/grammar.lark from the request beside it: .venv/bin/python scripts/write_grammars.py."""

from pathlib import Path

from constrained_k2 import ToolCallSpec, build_grammar

for request in sorted(Path(__file__).parents[1].glob("grammars/*/request.json")):
    text = build_grammar(ToolCallSpec.from_json(request.read_bytes()))
    (request.parent / "grammar.lark").write_text(text, encoding="utf-8")
    print(request.parent.name)
