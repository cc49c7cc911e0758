"""Finding recordings in folders, and the files beside them that may belong to them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mvpa_ts.checks import grouped, listed, warn
from mvpa_ts.ieeg.recordings import bids, headers
from mvpa_ts.ieeg.recordings.guards import warn_left_out

# Files that MNE reads; an .h5 file or a folder of them is a SWEC recording.
SUFFIXES = (".edf", ".bdf", ".gdf", ".vhdr", ".fif", ".fif.gz")
SWEC_SUFFIXES = (".h5", ".hdf5")
FROM_MNE = "Recording.from_raw(mne.io.read_raw(...))"
# Recordings of other programs, which MNE or their makers' programs read.
OTHER_SUFFIXES = (
    *(".trc", ".nwb", ".mefd", ".mef", ".cnt", ".set", ".lay", ".mff", ".ncs", ".smr", ".smrx", ".plx", ".pl2", ".rhd"),
    *(".rhs", ".rec", ".besa", *(f".ns{number}" for number in range(1, 7))),
    *(".e", ".21e", ".xdf", ".nedf", ".egi", ".nex", ".nex5", ".tdms", ".bci2000", ".edf.gz", ".bdf.gz", ".gdf.gz"),
    *(".edf.zip", ".bdf.zip", ".edf.bz2", ".edf.xz", ".mef3", ".sig", ".bni", ".eeg", ".erd", ".cdt", ".edf+"),
)
# Those that are folders.
_FOLDERS = (".mff", ".mefd")
# Tables of any program, and what follows the recording's name in those of its seizures and channels.
_TABLE = re.compile(r"\.(?:tsv|csv|txt|xlsx?|ods|csv_bi|tse|tse_bi|lbl|lbl_bi|xml|ann|seizures)(?:\.gz)?$")
_NAMES = {"events.tsv": ".*(?:event|annot|seiz|sz|mark|label)", "channels.tsv": ".*channel"}


def find_recordings(folder: str | os.PathLike[str]) -> list[Path]:
    """Files and SWEC subject folders below a folder that `read_recording` reads, sorted.

    A FIF file that MNE split counts once, by its first part. Hidden files and derivatives are left out, and of a BIDS
    data set also its folders sourcedata, code and stimuli. Linked folders are followed, each once, and so is a file to
    which several links lead. Warnings list such links, and `other_recordings`.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"no file or folder {folder}")
    # A subject's folder of SWEC is one recording, although it holds many files.
    if folder.is_file() or is_swec(folder):
        return [folder]
    if others := other_recordings(folder):
        named = listed([str(path.relative_to(folder)) for path in others])
        warn_left_out(
            f"{folder}: {len(others)} recording{'s' * (len(others) > 1)} of a kind that is not read: {named}. Export "
            f"them to EDF (or unpack them), or in Python use {FROM_MNE}"
        )
    recordings, links = _with_links(folder)
    if links:
        named = listed([f"{link.relative_to(folder)} ({to.relative_to(folder)})" for link, to in links.items()])
        warn_left_out(f"{folder}: links to recordings that are there already are left out: {named}")
    return recordings


def linked_recordings(folder: str | os.PathLike[str]) -> dict[Path, Path]:
    """Links below a folder that `find_recordings` leaves out, and the recording that each leads to."""
    folder = Path(folder)
    return {} if is_swec(folder) else _with_links(folder)[1]


def _with_links(folder: Path) -> tuple[list[Path], dict[Path, Path]]:
    recordings: set[Path] = set()
    for parent, names in _folders(folder):
        if is_swec(parent):
            recordings.add(parent)
            continue
        names = {name for name in names if name.lower().endswith(SUFFIXES)}
        recordings |= {parent / name for name in names if not _is_later_part(parent, name, names)}
    once: dict[str, Path] = {}
    # The file itself before links to it.
    for path in sorted(recordings, key=lambda path: (path.is_symlink(), path)):
        once.setdefault(os.path.realpath(path), path)
    links = sorted(recordings - {*once.values()})
    return sorted(once.values()), {path: once[os.path.realpath(path)] for path in links}


def other_recordings(folder: str | os.PathLike[str]) -> list[Path]:
    """Files below a folder that hold recordings of a kind that `read_recording` does not read, sorted."""
    others = []
    for parent, names in _folders(Path(folder)):
        # The samples of BrainVision have the ending of another program, and may be called otherwise than their header.
        samples = {name for name in names if name.lower().endswith(".eeg")}
        if len(samples) <= sum(name.lower().endswith(".vhdr") for name in names):
            names = names - samples
        others += [
            parent / name
            for name in names - {f"{Path(name).stem}.eeg" for name in names if name.lower().endswith(".vhdr")}
            if name.lower().endswith(_FOLDERS if (parent / name).is_dir() else OTHER_SUFFIXES)
        ]
    return sorted(others)


def _folders(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Each folder below one, with the names that it holds; the contents of those that are left out are not visited."""
    inside = os.path.realpath(folder)
    linked: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        # Folders of a BIDS data set that may hold other copies of its recordings, or files of none.
        others = {"derivatives", "sourcedata", "code", "stimuli"} if "dataset_description.json" in files else set()
        yield Path(parent), {name for name in (*files, *folders) if not name.startswith(".")}
        for name in sorted(folders):
            path = os.path.join(parent, name)
            target = os.path.realpath(path)
            # What lies in the folder is visited anyway, two links to one place are one, and a folder above is a circle.
            again = target in linked or os.path.commonpath([inside, target]) in (inside, target)
            if name.startswith(".") or name in others or (os.path.islink(path) and again):
                folders.remove(name)
            else:
                linked.add(target)
        folders.sort()


def _is_later_part(folder: Path, name: str, others: set[str]) -> bool:
    """Whether a file is a part, but not the first, of a FIF file that MNE split: "-1" or BIDS's "_split-02"."""
    if "_split-" in name and ".fif" in name:
        return "_split-01" not in name
    match = re.fullmatch(r"(.+)-\d+(\.fif(?:\.gz)?)", name)
    if match is None or match[1] + match[2] not in others:
        return False
    # "night-1.fif" may also be a recording of its own: the first part knows which files follow it.
    try:
        return folder / name in headers.check_fif(folder / (match[1] + match[2]))
    except (ValueError, OSError):  # damaged: reading it will say so
        return False


def is_swec(path: Path) -> bool:
    """Whether a file or a folder is a recording of SWEC, by its names."""
    if path.is_dir():
        return any(path.glob("*_total.h5")) or any(path.glob("*_part_*.h5"))
    return path.suffix.lower() in SWEC_SUFFIXES


def stem_of(path: Path) -> str:
    """The name of a recording: that of its file without its ending."""
    return path.name.removesuffix(".gz").rpartition(".")[0]


def check_kind(path: Path) -> None:
    """Raise a ValueError where a file's ending is none that `read_recording` knows."""
    if path.is_file() and not path.name.lower().endswith((*SUFFIXES, *SWEC_SUFFIXES)):
        header = path.with_suffix(".vhdr")  # of a BrainVision recording, whose samples are in .eeg and marks in .vmrk
        say = f"Export it to EDF, or in Python use {FROM_MNE} or, with samples, Recording.from_array"
        raise ValueError(
            f"{path.name}: unknown kind of file, known are {', '.join(SUFFIXES)} and SWEC .h5. "
            + (f"Did you mean {header.name}?" if header.is_file() else say)
        )


def warn_of_shared_names(files: Iterable[Path]) -> None:
    """Warn where different people may count as one subject.

    These are files of one name in different folders outside BIDS, and subjects of one name in several BIDS data sets.
    """
    files = [*files]
    locations = [location for file in files if (location := bids.bids_path(file)) is not None]
    data_sets = grouped((f"sub-{location.subject}", Path(location.root)) for location in locations)
    if several := {subject: sorted({*roots}) for subject, roots in data_sets.items() if len({*roots}) > 1}:
        subject, roots = next(iter(several.items()))
        others = f" (and {len(several) - 1} more names)" if len(several) > 1 else ""
        warn(
            f"{subject}{others} of {roots[0]} and of {roots[1]} counts as one subject: if they are different people, "
            "give them different names, or take the BIDS data sets one by one"
        )
    for name, alike in grouped((stem_of(file), file) for file in files if not is_swec(file)).items():
        alike = [file for file in alike if bids.bids_path(file) is None] if len(alike) > 1 else alike
        if len({file.parent for file in alike}) > 1:
            warn(
                f"{alike[0]} and {alike[1]} count as one subject, {name!r}, {len(alike)} files in all, because the "
                "subject outside BIDS is the file's name: if they are of different people, give the files different "
                "names or say who was recorded"
            )


def warn_of_shared_table(table: Path, path: Path) -> None:
    """Warn where several recordings inherit the times of one table, as BIDS allows."""
    if "_split-" not in path.name and {*table.name.split("_")} >= {*stem_of(path).split("_")} - {"ieeg", "eeg"}:
        return  # it has the recording's whole name
    recordings = _with_links(table.parent)[0]
    sharing = (file for file in recordings if bids.sidecar(file, bids.bids_path(file), "events.tsv") == table)
    if len(two := [*itertools.islice(sharing, 2)]) == 2:
        warn(
            f"{table} is the table of several recordings, such as {two[0].name} and {two[1].name}, and each has "
            "its events at the same seconds: if they are of one recording, give each a table of its own, such as "
            f"{stem_of(two[1]).rpartition('_')[0]}_{table.name.rpartition('_')[2]}"
        )


def warn_of_unread_tables(path: Path, suffix: str, what: str) -> None:
    """Warn of tables in the file's folder that may be of it, and whose names do not say so."""

    def plain(name: str) -> str:
        # "Night_Events.tsv" and "run-01" are meant for "night.edf" and "run-1".
        return re.sub(r"(?<!\d)0+(?=\d)", "", name.casefold())

    # A table of the recording's name alone may be of its seizures.
    kind, bare = _NAMES[suffix], r"|\." if suffix == "events.tsv" else ""
    names = os.listdir(path.parent)
    recordings = (name for name in (path.name, *names) if name.lower().endswith(SUFFIXES))
    stem, *others = [plain(bids.beside(path.parent / name, "").name).removesuffix("_") for name in recordings]
    for name in sorted(names):
        text = plain(name)
        of_another = any(len(other) > len(stem) and text.startswith(other) for other in others)
        named = not of_another and re.match(rf"{re.escape(stem)}(?![^\W_])(?:{kind}{bare})", text)
        # Beside the only recording, a table needs no name of it.
        alone = {*others} == {stem} and re.match(kind, text)
        if text == suffix or (_TABLE.search(text) and (named or alone)):
            warn_left_out(
                f"{path.parent / name} is not read. If it {what} of {path.name}, "
                f"{'call it' if text.endswith('.tsv') else 'write them into'} {bids.beside(path, suffix).name}"
            )
