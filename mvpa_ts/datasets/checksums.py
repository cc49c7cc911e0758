"""Whether a file of the data folder is the one that was published: a copy that was cut short moves every border."""

from __future__ import annotations

import hashlib
from pathlib import Path

SUMS = "SHA256SUMS"


def noted_checksum(folder: Path, relative: str) -> str | None:
    """The SHA-256 that ``SHA256SUMS`` in the data folder states for a file, None where it says nothing of it.

    The table is how a file that was changed on purpose is used: it says which content is meant. It has the form that
    ``sha256sum weather/weather.csv >> SHA256SUMS`` writes.

    Parameters
    ----------
    folder : Path
        The folder that ``MVPA_TS_DATA`` names.
    relative : str
        The file's path below it, with slashes.

    Raises
    ------
    ValueError
        A line is no checksum with a path.

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
            raise ValueError(f"{table}, line {number}: a SHA-256 of 64 digits and a path are expected")
        if name == relative:
            return checksum.lower()
    return None


def check_content(path: Path, folder: Path, relative: str, published: str) -> None:
    """Raise a ValueError where a file is neither the published one nor the one that ``SHA256SUMS`` states.

    Parameters
    ----------
    path : Path
        The file.
    folder : Path
        The folder that ``MVPA_TS_DATA`` names.
    relative : str
        The file's path below it.
    published : str
        SHA-256 of the published file.
    """
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    noted = noted_checksum(folder, relative)
    if content in (published, noted):
        return
    if noted is not None:
        raise ValueError(f"{path} has another content than {folder / SUMS} states: it is damaged, or was changed since")
    raise ValueError(
        f"{path} is not the published file: it is damaged, cut short or changed. Remove it, so that it is downloaded. "
        f"If it was changed on purpose, say so in {folder}: sha256sum {relative} >> {SUMS}"
    )
