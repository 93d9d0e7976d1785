r"""Constants: the bytes of XTML's special tokens in LLGuidance's encoding, and of ``argument key="``.

The bytes are ``\xff`` followed by the token's text.
"""

from constrained_k2.engines.llguidance.position import MARKER
from constrained_k2.formats import kimi_k3

OPEN, CLOSE, SEPARATOR = (MARKER + text.encode() for text in (kimi_k3.OPEN, kimi_k3.CLOSE, kimi_k3.SEPARATOR))
BEFORE_KEY = kimi_k3.BEFORE_KEY.encode()
