"""What a fuzzed format is, and all of them by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DOCUMENTED = (ValueError, OSError)
"""What a reader may raise for a damaged file; a FileNotFoundError is an OSError."""


@dataclass(frozen=True)
class Format:
    """A small good sample, the files of it that are mutated, and how all of it is read.

    Attributes
    ----------
    name : str
    make : callable
        Writes the sample into a folder.
    read : callable
        Reads the folder; returns, or raises one of `DOCUMENTED`.
    files : tuple of str
        Patterns of the files to mutate.
    """

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]
    files: tuple[str, ...]

    def paths(self, folder: Path) -> list[Path]:
        """The files to mutate."""
        return sorted({path for pattern in self.files for path in folder.glob(pattern) if path.is_file()})


def all_formats() -> dict[str, Format]:
    """Every format by name; importing the libraries that they need."""
    from support.fuzzing import recordings, saved, tables

    return {form.name: form for form in (*recordings.FORMATS, *tables.FORMATS, *saved.FORMATS)}
