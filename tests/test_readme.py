"""What the README says and a command prints is the same."""

from pathlib import Path

import constrained_k2
from constrained_k2.cli.coverage import keyword_table

README = Path(constrained_k2.__file__).parent.parent / "README.md"


def test_the_table_of_keywords_is_what_the_engines_say() -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition("<!-- constrained-k2 coverage --keywords -->\n")
    table, end, _ = rest.partition("\n<!-- end -->")
    assert before and end
    assert table.strip() == keyword_table(), "write it anew: constrained-k2 coverage --keywords"
