"""The log of overrides: JSON lines in a file of this process, which is rotated."""

import json
import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

from constrained_k2.errors import InvalidRequest
from constrained_k2.explain.log_lines import Line
from constrained_k2.vllm_plugin.log import warn
from constrained_k2.vllm_plugin.settings import OVERRIDES_LOG

_MAX_BYTES = 32 << 20  # of a file
_FILES = 4  # with the current one; the oldest goes


class _Handler(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's name
        """Report a full disk or the like in the server's log; the line is lost."""
        warn("the log of overrides cannot be written", self.baseFilename)


class OverrideLog:
    """Appends lines to ``NAME.PID.SUFFIX``; raises ``InvalidRequest`` if the file cannot be opened."""

    def __init__(self, path: str) -> None:
        name = Path(path)
        self.path = name.with_name(f"{name.stem}.{os.getpid()}{name.suffix or '.jsonl'}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = _Handler(self.path, maxBytes=_MAX_BYTES, backupCount=_FILES - 1, encoding="ascii")
        except (OSError, ValueError) as error:  # the latter for a null character
            remedy = "Name a file that the server can write"
            raise InvalidRequest(f"cannot be written: {error}", OVERRIDES_LOG, remedy) from error

    def write(self, line: Line) -> None:
        """Append a line; its text is escaped to ASCII."""
        text = json.dumps(msgspec.to_builtins(line), separators=(",", ":"))
        self._handler.handle(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))
