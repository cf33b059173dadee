"""Logging: one handler to standard error for every command and every process of ours.

Knows: errors.
"""

import logging
import os
import sys
from typing import Any, TextIO

from loong_jax.errors import ConfigError

VARIABLE = "LOONG_LOG"
LEVELS = ("debug", "info", "warning", "error")


def start(level: str | None = None) -> None:
    """Shows what our modules log from `level` on, else from LOONG_LOG or info; others' warnings.

    The level holds for processes that this one starts too. Raises ConfigError for another word.
    """
    level = (level or os.environ.get(VARIABLE) or "info").lower()
    if level not in LEVELS:
        raise ConfigError(
            f"{level!r} is no level of logging. Give --log-level or {VARIABLE} one of "
            f"{', '.join(LEVELS)}."
        )
    os.environ[VARIABLE] = level
    logging.getLogger("loong_jax").setLevel(level.upper())
    root = logging.getLogger()
    if not any(isinstance(handler, _ToStandardError) for handler in root.handlers):
        handler = _ToStandardError()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        root.addHandler(handler)


class _ToStandardError(logging.StreamHandler):
    """Writes to what `sys.stderr` is at the time: a live display puts lines above itself there."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None:
        pass
