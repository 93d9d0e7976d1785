"""Write the bundled samples."""

import json
import lzma

from constrained_k2.evaluation.bundled import BUNDLED
from scripts.bundled_samples import drawn_bodies

if __name__ == "__main__":
    lines = "".join(json.dumps(body, ensure_ascii=False) + "\n" for body in drawn_bodies(3000))
    BUNDLED.write_bytes(lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME))
