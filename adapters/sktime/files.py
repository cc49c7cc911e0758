"""Which estimator a folder of `to_files` belongs to."""

from __future__ import annotations

from pathlib import Path

_OWNERS = {
    "forecaster.json": "MVPAForecaster",
    "classifier.json": "MVPAClassifier",
    "regressor.json": "MVPARegressor",
}


def check_folder(folder: str | Path, owner: str) -> None:
    """Raise an error that says what a folder holds, if it is not of that estimator.

    Examples
    --------
    >>> check_folder("nowhere", "MVPAForecaster")
    Traceback (most recent call last):
    FileNotFoundError: there is no folder nowhere
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    holds = [name for file, name in _OWNERS.items() if (folder / file).is_file()]
    if holds and owner not in holds:
        kind = holds[0].removeprefix("MVPA").lower()
        raise ValueError(f"{folder} holds a {kind}: use {holds[0]}.from_files")
