"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the file, then rename: who reads it meanwhile, or after a kill, finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.chmod(file.name, 0o644)  # a temporary file is its owner's alone
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
