"""Check the repository: ``python -m scripts.lint`` prints each finding with its place, and exits 1 if there is one."""

import sys

from scripts.lint import imports, words


def main() -> int:
    """Print all findings."""
    findings = [*words.findings(), *imports.findings()]
    print(*findings, sep="\n", end="\n" if findings else "")
    print(f"{len(findings)} findings of scripts.lint (docs/contributing/style.md and architecture.md say the rules)")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
