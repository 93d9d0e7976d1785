"""Print the tables of docs/performance.md, and which promises hold (some fifteen minutes on two quiet cores).

.venv/bin/python scripts/bench_host.py [--skip-slow] [--quick]
"""

import sys
from pathlib import Path

from constrained_k2.cli import main

if __name__ == "__main__":
    shared = Path(__file__).resolve().parent.parent.parent / "shared"
    sys.exit(main(["bench", "--shared", str(shared), *sys.argv[1:]]))
