"""What reading a file says: the error that refuses it, or the warning that comes with the recording."""

from pathlib import Path
from typing import Any

import pytest

from mvpa_ts.ieeg import Recording, read_recording


def refused(path: Path, message: str, kind: type[Exception] = ValueError, **options: Any) -> str:
    """The error of a file that is not read."""
    with pytest.raises(kind, match=message) as caught:
        read_recording(path, **options)
    return str(caught.value)


def warned(path: Path, message: str, **options: Any) -> Recording:
    """The recording of a file that is read with a warning."""
    with pytest.warns(UserWarning, match=message):
        return read_recording(path, **options)
