"""Which estimator a folder of `to_files` belongs to."""

from __future__ import annotations

from pathlib import Path


def check_folder(folder: str | Path, owner: str) -> None:
    """Raise an error that says what a folder holds, if it is not of that kind of estimator, such as "forecaster"."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    holds = [kind for kind in ("forecaster", "classifier", "regressor") if (folder / f"{kind}.json").is_file()]
    if holds and owner not in holds:
        raise ValueError(f"{folder} holds a {holds[0]}: use MVPA{holds[0].title()}.from_files")
