"""BrainVision: what its header and its marks state, checked before MNE reads them, and read where MNE cannot."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from mvpa_ts.checks import grouped, warn
from mvpa_ts.ieeg.recordings import guards

# Bytes of a sample of one channel.
_BYTES = {"INT_16": 2, "IEEE_FLOAT_32": 4}
# MNE reads a file with other values as a continuous signal, without a word.
_CONTINUOUS = {
    "DataType": "TIMEDOMAIN",
    "SegmentationType": "NOTSEGMENTED",
    "Averaged": "NO",
    "UseBigEndianOrder": "NO",
}
# Place, length and channel follow, and may be a time of 20 digits.
_TEXT_OF_MARK = re.compile(r"^(Mk\d+=[^,\n]*,)(.*)(?=(?:, *-?\d{1,19}){3}(?:,\d{20})?\s*$)", re.MULTILINE)


class Header:
    """The keys of a header file, and the files that it names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Comments hold impedances in lines that look like keys.
        self.text = header_text(path).partition("[Comment]")[0]

    def values(self, key: str) -> list[str]:
        """What the header states of a key, which may be a pattern, each time that it does."""
        matches = re.findall(rf"^[ \t]*{key}[ \t]*[=:](.*)$", self.text, re.MULTILINE | re.IGNORECASE)
        return [value.strip() for value in matches]

    def number(self, key: str) -> float | None:
        """The number that the header states; None where it states nothing."""
        try:
            return float(self.values(key)[0]) if self.values(key) else None
        except ValueError:
            raise ValueError(f"{self.path}: {key} is not a number") from None

    @property
    def marker_files(self) -> list[Path]:
        """The marker files that are there; of a header that names another, as after renaming, MNE reads its own."""
        files = [self.path.parent / name for name in self.values("MarkerFile") if name]
        own = [self.path.with_suffix(".vmrk")] if files else []
        return [*filter(Path.exists, files)] or [*filter(Path.exists, own)]


def check_brainvision(path: Path, truncated: str = "error") -> list[str]:
    """Check that a header names files of its own folder, and data of whole samples; its channels' names.

    "read" passes a data file that is shorter than the header says, or ends within a sample.
    """
    header = Header(path)
    if "brain" not in header.text.partition("\n")[0].lower():
        raise guards.damaged(path, "no header of BrainVision")
    _check_names_of_files(header)
    channels, interval = _channels_and_interval(header)
    data = _data_file(header)
    _check_marker_files(header, interval)
    for key, usual in _CONTINUOUS.items():
        if (stated := header.values(key)[:1]) and stated[0].upper() != usual:
            raise ValueError(f"{path}: {key} must be {usual}, got {stated[0]:.40}: export the continuous signal")
    names = _channel_names(header, channels)
    kinds = [kind for kind in header.values("BinaryFormat") if kind in _BYTES]
    if kinds and header.values("DataFormat")[:1] == ["BINARY"]:
        frame, size = _BYTES[kinds[0]] * channels, os.path.getsize(data)
        if size < frame:
            raise ValueError(f"{data} has {size} bytes, less than one sample of {path.name}'s {channels} channels")
        if truncated != "read":
            _check_whole(header, data, frame, 1e6 / interval)
    return names


def _check_names_of_files(header: Header) -> None:
    # Both are opened by MNE, relative to the header, wherever they point.
    for key in ("DataFile", "MarkerFile"):
        for name in header.values(key):
            guards.check_local(name, header.path, key)
            twin = header.path.with_suffix(Path(name).suffix)
            if twin.name != name and twin.is_file() and (header.path.parent / name).is_file():
                warn(
                    f"{header.path} names {name} as its {key}, which is read, and {twin.name} lies beside it: was the "
                    f"file renamed? Then write {twin.name} in it"
                )


def _channels_and_interval(header: Header) -> tuple[int, float]:
    """Number of channels, and µs from sample to sample."""
    channels, interval = header.number("NumberOfChannels"), header.number("SamplingInterval")
    if channels is None or not 1 <= channels <= guards.MAX_CHANNELS or channels != int(channels):
        raise ValueError(f"{header.path}: NumberOfChannels must lie from 1 to {guards.MAX_CHANNELS}, got {channels}")
    if interval is None or not 1e6 / guards.MAX_RATE <= interval <= 1e6:
        raise ValueError(f"{header.path}: SamplingInterval must lie between 1 and 1,000,000 µs, got {interval}")
    return int(channels), interval


def _data_file(header: Header) -> Path:
    path, names = header.path, header.values("DataFile")
    if len(names) != 1:
        raise ValueError(f"{path} must name one DataFile, it names {len(names)}")
    data = path.parent / names[0]
    if not data.exists():
        raise FileNotFoundError(f"{path} names {data.name} as its DataFile, which is not there: was it renamed?")
    guards.check_regular(data)
    return data


def _check_marker_files(header: Header, interval: float) -> None:
    """Warn of marks that the header does not name; raise a ValueError where marks say that the amplifier paused."""
    path = header.path
    if not any(header.values("MarkerFile")) and (marks := path.with_suffix(".vmrk")).is_file():
        guards.warn_left_out(
            f"{path} names no MarkerFile, and {marks.name}, which lies beside it, is not read: write MarkerFile="
            f"{marks.name} in it if it has the marks"
        )
    for file in header.marker_files:
        _check_pauses(file, interval)


def _check_pauses(path: Path, interval: float) -> None:
    """Raise a ValueError where the marks "New Segment" say that the amplifier paused; `interval` is a sample in µs."""
    marks = re.findall(r"^Mk\d+=New Segment,[^,]*,(\d+),[^,\n]*,[^,\n]*(?:,(\d{20}))?", header_text(path), re.MULTILINE)
    first = None
    for sample, stamp in marks:
        seconds = int(sample) * interval / 1e6
        if not stamp or stamp.startswith("0000"):
            if seconds > interval / 1e6:
                warn(f"{path} has a new segment at {seconds:g} s without a time: a pause there is not seen")
            continue
        try:
            clock = datetime.strptime(stamp, "%Y%m%d%H%M%S%f")
        except ValueError:
            raise ValueError(f"{path} has a new segment at {seconds:g} s whose time {stamp} is none") from None
        if first is None and seconds > interval / 1e6:
            warn(f"{path} says when its part at {seconds:g} s began, which is taken for its start")
        first = first or (seconds, clock)
        gap = (clock - first[1]).total_seconds() - (seconds - first[0])
        # Clocks of computer and amplifier drift, by far less than a millisecond in 10 s.
        if abs(gap) > 0.01 + 1e-4 * (seconds - first[0]):
            raise ValueError(
                f"{path} is discontinuous: after {seconds - first[0]:g} s of signal comes a gap of {gap:g} s. Split "
                "the recording at its segments, or fill the gap"
            )


def _channel_names(header: Header, channels: int) -> list[str]:
    path = header.path
    if (listed := len(brainvision_units(path))) != channels:
        raise ValueError(
            f"{path} states {channels} channels (NumberOfChannels) and lists {listed}: with a wrong number all samples "
            "are shuffled, so correct it"
        )
    names = [value.split(",")[0].replace("\\1", ",") for value in header.values(r"Ch\d+")[:channels]]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path} has the channel {twice} more than once, which MNE cannot read: rename one in it")
    return names


def _check_whole(header: Header, data: Path, frame: int, sfreq: float) -> None:
    """Raise a ValueError where samples of `frame` bytes are missing: by the file's size, its marks or its header."""
    path, size = header.path, os.path.getsize(data)
    # A remainder says that bytes are missing, or that the number of channels is wrong: then all are shuffled.
    if size % frame:
        raise ValueError(
            f"{data} has {size} bytes, which is not a whole number of samples of {frame} bytes as {path.name} states "
            f"them: it is truncated, or the header is another file's. {guards.READ_ALL_THE_SAME}"
        )
    samples = size // frame
    texts = map(header_text, header.marker_files)
    places = (re.findall(r"^Mk\d+=[^,]*,[^,]*,(\d{1,18}),", text, re.MULTILINE) for text in texts)
    if (last := max((int(place) for of_file in places for place in of_file), default=0)) > samples + sfreq:
        raise ValueError(f"{data} is truncated: a mark is at sample {last} of {samples}. {guards.READ_ALL_THE_SAME}")
    promised = header.number("DataPoints") or 0.0
    if samples < promised:
        raise ValueError(
            f"{data} is truncated: {path.name} promises {promised:.0f} samples, it has {samples}. "
            f"{guards.READ_ALL_THE_SAME}"
        )


def brainvision_units(path: Path) -> list[str]:
    """Units of the channels as a BrainVision header states them; without one it is µV, by the format's own rule."""
    section = header_text(path).partition("[Channel Infos]")[2].partition("\n[")[0]
    lines = re.findall(r"^[ \t]*Ch\d+[ \t]*=(.*)$", section, re.MULTILINE | re.IGNORECASE)
    fields = [line.split(",") for line in lines]
    return [field[3].strip() or "µV" if len(field) > 3 else "µV" for field in fields]


def header_text(path: Path) -> str:
    """A header or marker file of BrainVision in UTF-8, or else in the code page that it names.

    "ANSI" is the code page of the computer that wrote the file, as a rule Windows-1252.
    """
    content = guards.read_text_bytes(path)
    with suppress(UnicodeDecodeError):
        return content.decode("utf-8-sig")
    page = _stated_page(content)
    with suppress(LookupError):
        if page not in ("", "utf-8", "utf8", "ansi"):
            return content.decode(f"cp{page}" if page.isdecimal() else page, errors="replace")
    return content.decode("cp1252", errors="replace")


def _stated_page(content: bytes) -> str:
    match = re.search(rb"^[ \t]*codepage[ \t]*=[ \t]*([\w-]+)", content, re.MULTILINE | re.IGNORECASE)
    return match[1].decode("ascii", "replace").lower() if match else ""


def in_utf8(path: Path, folder: Path) -> Path:
    """A copy in UTF-8, as MNE reads it, of a BrainVision header and its marker file; the data stay where they are."""

    def stated(text: str, key: str, value: str) -> str:
        line = re.compile(rf"^([ \t]*{key}[ \t]*=).*$", re.MULTILINE | re.IGNORECASE)
        return line.sub(lambda match: match[1] + value, text)

    header, text = Header(path), stated(header_text(path), "Codepage", "UTF-8")
    for name in header.values("DataFile")[:1]:
        text = stated(text, "DataFile", os.path.abspath(path.parent / name))
    for file in header.marker_files[:1]:
        content, marks = guards.read_text_bytes(file), header_text(file)
        # A file in UTF-8 is copied for the sake of its name, its header or its commas.
        page = None if content.endswith(marks.encode()) else _stated_page(content)
        copy = _TEXT_OF_MARK.sub(lambda match: match[1] + match[2].replace(",", r"\1"), marks)
        if page in ("", "utf-8", "utf8"):
            warn(f"{file.name} is not UTF-8 and names no other code page: read as Windows-1252")
        # Words of Western Europe hardly have three such letters in a row, those of other alphabets have no others.
        elif page == "ansi" and re.search(r"[^\x00-\x7f]{3}", copy):
            warn(
                f"{file.name} is read as Windows-1252 and seems to be in another code page: name it in the file, such "
                "as Codepage=1251 (Cyrillic) or Codepage=932 (Japanese)"
            )
        (folder / "marks.vmrk").write_text(stated(copy, "Codepage", "UTF-8"), encoding="utf-8", newline="")
        text = stated(text, "MarkerFile", "marks.vmrk")
    (folder / "header.vhdr").write_text(text, encoding="utf-8", newline="")
    return folder / "header.vhdr"


def bad_intervals(path: Path) -> dict[int, set[int]]:
    """Channels, by the first sample, of the marks "Bad Interval" of single channels beside a header; all from 1 on.

    MNE leaves the channel out, so that the stretch would be bad in all.
    """
    pattern = r"^Mk\d+=Bad Interval,[^,\n]*,(\d+),\d*,(\d+)"
    marks = (re.findall(pattern, header_text(file), re.MULTILINE) for file in Header(path).marker_files)
    channels = grouped((int(sample), int(channel)) for of_file in marks for sample, channel in of_file)
    return {sample: {*numbers} for sample, numbers in channels.items() if 0 not in numbers}
