"""Bearer tokens for commands. They never stand on the command line, which every process on the machine can read."""

import os
import re
import sys
from typing import Final

from trunkline.errors import ConfigError

__all__ = ["read_token"]

_TOKEN: Final = re.compile(r"[!-~]+")


def read_token(source: str | None) -> str | None:
    """Read a token: from the environment variable of that name, or from standard input for `-`. Raises `ConfigError` if
    there is none."""
    if source is None:
        return None
    token = (sys.stdin.readline() if source == "-" else os.environ.get(source, "")).strip()
    if not _TOKEN.fullmatch(token):  # the value is not shown: it may be the token itself
        raise ConfigError(
            "--token takes the name of an environment variable that holds the token, or - for standard input"
        )
    return token
