"""Write grammars/**/grammar.lark from the request beside it: .venv/bin/python -m scripts.write_grammars."""

from pathlib import Path

from constrained_k2 import KIMI_K2, ToolCallSpec, build_grammar
from constrained_k2.formats.kimi_k3 import KIMI_K3

ROOT = Path(__file__).parents[1] / "grammars"
K3 = ROOT / "kimi_k3"


def cases(folder: Path) -> list[Path]:
    """Return the folders of a format's cases."""
    return sorted(path.parent for path in folder.glob("*/request.json"))


def grammar_of(case: Path) -> str:
    """Return the grammar of a case."""
    spec = ToolCallSpec.from_json((case / "request.json").read_bytes())
    return build_grammar(spec, markers=KIMI_K3 if case.parent == K3 else KIMI_K2)


if __name__ == "__main__":
    for case in [*cases(ROOT), *cases(K3)]:
        (case / "grammar.lark").write_text(grammar_of(case), encoding="utf-8")
        print(case.relative_to(ROOT))
