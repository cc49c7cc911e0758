"""What is said of arguments and files: the error that refuses them, or the warning that comes with a recording."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mvpa_ts.ieeg import Recording, read_recording


def refuses(
    read: Callable[..., Any], message: str, *arguments: Any, kind: type[Exception] = ValueError, **options: Any
) -> str:
    """The error of a reader, or of anything else that is called, that does not take these arguments."""
    with pytest.raises(kind, match=message) as caught:
        read(*arguments, **options)
    return str(caught.value)


def refused(path: Path, message: str, kind: type[Exception] = ValueError, **options: Any) -> str:
    """The error of a recording that is not read."""
    return refuses(read_recording, message, path, kind=kind, **options)


def warned(path: Path, message: str, **options: Any) -> Recording:
    """The recording of a file that is read with a warning."""
    with pytest.warns(UserWarning, match=message):
        return read_recording(path, **options)


def change(file: Path, action: Callable[[Any], Any]) -> None:
    """Do something to an HDF5 file."""
    import h5py

    with h5py.File(file, "r+") as opened:
        action(opened)
