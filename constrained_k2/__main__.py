"""``python -m constrained_k2``."""

import sys

from constrained_k2.cli import main

sys.exit(main())
