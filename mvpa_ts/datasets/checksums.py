"""Checks that a file of the data folder is the published one: a file that was cut short would shift every split."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"


def downloader(name: str, file: str, extra: str) -> Any:
    """The package pooch; without it an OSError says where to put a file by hand."""
    try:
        import pooch
    except ImportError as error:
        raise OSError(
            f"{name} is not in MVPA_TS_DATA ({os.environ.get('MVPA_TS_DATA') or 'unset'}): put {file} there, "
            f'or pip install ".[{extra}]" in the clone to download it'
        ) from error
    return pooch


def noted_checksum(folder: Path, relative: str) -> str | None:
    """Return the SHA-256 that ``SHA256SUMS`` in the data folder states for a file, or None.

    List a file there if you changed it on purpose and want to use it. The command
    ``sha256sum weather/weather.csv >> SHA256SUMS`` writes such a line. One without checksum and path is a ValueError.
    The folder is that of ``MVPA_TS_DATA``; `relative` is the path below it, with slashes.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "SHA256SUMS").write_text(f"{'0' * 64}  weather/weather.csv\\n")
    >>> noted_checksum(folder, "weather/weather.csv") == "0" * 64
    True
    """
    table = folder / SUMS
    if not table.is_file():
        return None
    for number, line in enumerate(table.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        checksum, _, name = line.strip().partition(" ")
        name = name.strip().removeprefix("*").removeprefix("./")
        if not line.strip() or line.startswith("#"):
            continue
        if len(checksum) != 64 or not name:
            raise ValueError(
                f"{table}, line {number}, must hold a SHA-256 of 64 digits and a path, got {line.strip()!r:.100}"
            )
        if name == relative:
            return checksum.lower()
    return None


def check_content(path: Path, folder: Path, relative: str, published: str) -> None:
    """Raise a ValueError if a file is neither the published one nor the one that ``SHA256SUMS`` states.

    `folder` and `relative` are those of `noted_checksum`; `published` is the SHA-256 of the published file.
    """
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    noted = noted_checksum(folder, relative)
    if content in (published, noted):
        return
    if noted is not None:
        raise ValueError(f"{path} does not have the SHA-256 that {folder / SUMS} states: it is damaged or changed")
    raise ValueError(
        f"{path} is not the published file: it is damaged, cut short or changed. Remove it, so that it is downloaded. "
        f"If it was changed on purpose, say so in {folder}: sha256sum {relative} >> {SUMS}"
    )
