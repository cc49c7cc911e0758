"""Headers of BrainVision, GDF and FIF files, checked before MNE reads them: sizes, and names of other files."""

from __future__ import annotations

import gzip
import os
import re
import struct
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import numpy as np

from mvpa_ts.checks import grouped, warn
from mvpa_ts.ieeg.recordings import guards

READ_ALL_THE_SAME = 'To read what is there, add --truncated read in a command, or pass truncated="read" in Python'
_BRAINVISION_BYTES = {"INT_16": 2, "IEEE_FLOAT_32": 4}
# By the number of a GDF data type; 0 where there is none.
_GDF_BYTES = (0, 1, 1, 2, 2, 4, 4, 8, 8, 0, 0, 0, 0, 0, 0, 0, 4, 8)
# FIFF_DIR_POINTER, FIFF_BLOCK_START, FIFF_REF_ROLE with FIFFV_ROLE_PREV_FILE, FIFF_REF_FILE_NUM, FIFF_REF_FILE_NAME
_FIF_DIRECTORY, _FIF_BLOCK_START = 101, 104
_FIF_ROLE, _FIF_ROLE_PREVIOUS, _FIF_NUMBER_OF_ANOTHER, _FIF_NAME_OF_ANOTHER = 115, 1, 117, 118


def check_brainvision(path: Path, truncated: str = "error") -> list[str]:
    """Check that a BrainVision header names files of its own folder, and data of whole samples; its channels' names.

    "read" passes a data file that is shorter than the header says, or ends within a sample.
    """
    text = header_text(path)
    if "brain" not in text.partition("\n")[0].lower():
        raise _damaged(path, "no header of BrainVision")
    # Comments hold impedances in lines that look like keys.
    text = text.partition("[Comment]")[0]

    def values(key: str) -> list[str]:
        matches = re.findall(rf"^[ \t]*{key}[ \t]*[=:](.*)$", text, re.MULTILINE | re.IGNORECASE)
        return [value.strip() for value in matches]

    def number(key: str) -> float | None:
        try:
            return float(values(key)[0]) if values(key) else None
        except ValueError:
            raise ValueError(f"{path}: {key} is not a number") from None

    # Both are opened by MNE, relative to the header, wherever they point.
    for key in ("DataFile", "MarkerFile"):
        for name in values(key):
            guards.check_local(name, path, key)
            own = path.with_suffix(Path(name).suffix)
            if own.name != name and own.is_file() and (path.parent / name).is_file():
                warn(
                    f"{path} names {name} as its {key}, which is read, and {own.name} lies beside it: was the file "
                    f"renamed? Then write {own.name} in it"
                )
    channels, interval = number("NumberOfChannels"), number("SamplingInterval")
    if channels is None or not 1 <= channels <= guards.MAX_CHANNELS or channels != int(channels):
        raise ValueError(f"{path}: NumberOfChannels must lie between 1 and {guards.MAX_CHANNELS}, got {channels}")
    if interval is None or not 1e6 / guards.MAX_RATE <= interval <= 1e6:
        raise ValueError(f"{path}: SamplingInterval must lie between 1 and 1,000,000 µs, got {interval}")
    if len(values("DataFile")) != 1:
        raise ValueError(f"{path} must name one DataFile, it names {len(values('DataFile'))}")
    data = path.parent / values("DataFile")[0]
    if not data.exists():
        raise FileNotFoundError(f"{path} names {data.name} as its DataFile, which is not there: was it renamed?")
    guards.check_regular(data)
    if not any(values("MarkerFile")) and (marks := path.with_suffix(".vmrk")).is_file():
        guards.warn_left_out(
            f"{path} names no MarkerFile, and {marks.name}, which lies beside it, is not read: write MarkerFile="
            f"{marks.name} in it if it has the marks"
        )
    for name in values("MarkerFile"):
        if name and (path.parent / name).exists():
            _check_pauses(path.parent / name, interval)
    # MNE reads these as a continuous signal, without a word.
    for key, usual in (
        ("DataType", "TIMEDOMAIN"),
        ("SegmentationType", "NOTSEGMENTED"),
        ("Averaged", "NO"),
        ("UseBigEndianOrder", "NO"),
    ):
        if values(key) and values(key)[0].upper() != usual:
            raise ValueError(f"{path}: {key} must be {usual}, got {values(key)[0]:.40}: export the continuous signal")
    if (listed := len(brainvision_units(path))) != channels:
        raise ValueError(
            f"{path} states {channels:.0f} channels (NumberOfChannels) and lists {listed}: with a wrong number all "
            "samples are shuffled, so correct it"
        )
    names = [value.split(",")[0].replace("\\1", ",") for value in values(r"Ch\d+")[: int(channels)]]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path} has the channel {twice} more than once, which MNE cannot read: rename one in it")
    kinds = [kind for kind in values("BinaryFormat") if kind in _BRAINVISION_BYTES]
    if not kinds or values("DataFormat")[:1] != ["BINARY"]:
        return names
    frame = _BRAINVISION_BYTES[kinds[0]] * int(channels)
    size = os.path.getsize(data)
    if size < frame:
        raise ValueError(f"{data} has {size} bytes, less than one sample of {path.name}'s {int(channels)} channels")
    if truncated != "read":
        # A remainder says that bytes are missing, or that the header has the wrong number of channels: then all are
        # shuffled.
        if size % frame:
            raise ValueError(
                f"{data} has {size} bytes, which is not a whole number of samples of {frame} bytes as {path.name} "
                f"states them: it is truncated, or the header is another file's. {READ_ALL_THE_SAME}"
            )
        marked = [
            int(position)
            for name in filter(None, values("MarkerFile"))
            if (path.parent / name).is_file()
            for position in re.findall(r"^Mk\d+=[^,]*,[^,]*,(\d{1,18}),", header_text(path.parent / name), re.MULTILINE)
        ]
        if max(marked, default=0) > size // frame + 1e6 / interval:
            raise ValueError(
                f"{data} is truncated: a mark lies at sample {max(marked)}, it has {size // frame}. {READ_ALL_THE_SAME}"
            )
        points = number("DataPoints")
        if points is not None and points > 0 and size < points * frame:
            raise ValueError(
                f"{data} is truncated: {path.name} promises {points:.0f} samples, it has {size // frame}. "
                f"{READ_ALL_THE_SAME}"
            )
    return names


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
    """A copy in UTF-8 of a BrainVision header and its marker file in a folder; the data stay where they are."""

    def line(key: str) -> re.Pattern[str]:
        return re.compile(rf"^([ \t]*{key}[ \t]*=)(.*)$", re.MULTILINE | re.IGNORECASE)

    def stated(text: str, key: str, value: str) -> str:
        return line(key).sub(lambda match: match[1] + value, text)

    text = stated(header_text(path), "Codepage", "UTF-8")
    if (data := line("DataFile").search(text)) is not None:
        text = stated(text, "DataFile", os.path.abspath(path.parent / data[2].strip()))
    if (marks := line("MarkerFile").search(text)) is not None and (file := path.parent / marks[2].strip()).is_file():
        copy, page = stated(header_text(file), "Codepage", "UTF-8"), _stated_page(guards.read_text_bytes(file))
        if page in ("", "utf-8", "utf8"):
            warn(f"{file.name} is not UTF-8 and names no other code page: read as Windows-1252")
        # Words of Western Europe hardly have three such letters in a row, those of other alphabets have no others.
        elif page == "ansi" and re.search(r"[^\x00-\x7f]{3}", copy):
            warn(
                f"{file.name} is read as Windows-1252 and seems to be in another code page: name it in the file, such "
                "as Codepage=1251 (Cyrillic) or Codepage=932 (Japanese)"
            )
        (folder / file.name).write_text(copy, encoding="utf-8", newline="")
        text = stated(text, "MarkerFile", file.name)
    (folder / path.name).write_text(text, encoding="utf-8", newline="")
    return folder / path.name


def bad_intervals(path: Path) -> dict[int, set[int]]:
    """Channels, by the first sample, of the marks "Bad Interval" of single channels beside a header; all from 1 on.

    MNE leaves the channel out, so that the stretch would be bad in all.
    """
    name = re.search(r"^[ \t]*MarkerFile[ \t]*=(.*)$", header_text(path), re.MULTILINE | re.IGNORECASE)
    if name is None or not (file := path.parent / name[1].strip()).is_file():
        return {}
    marks = re.findall(r"^Mk\d+=Bad Interval,[^,\n]*,(\d+),\d*,(\d+)", header_text(file), re.MULTILINE)
    channels = grouped((int(sample), int(channel)) for sample, channel in marks)
    return {sample: {*of} for sample, of in channels.items() if 0 not in of}


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


def check_gdf(path: Path) -> tuple[str, ...]:
    """Check what a GDF header promises against the file's size; its channels' names.

    MNE reserves memory for as many channels and events as the header states.
    """
    size = os.path.getsize(path)
    with path.open("rb") as file:
        fixed = file.read(256)
        try:
            if len(fixed) < 256 or fixed[:4] != b"GDF ":
                raise ValueError
            version = float(fixed[4:8])
        except ValueError:
            raise ValueError(f"{path} is no GDF file, or its header is truncated") from None
        old = version < 1.9
        (records,) = struct.unpack_from("<q", fixed, 236)
        numerator, denominator = struct.unpack_from("<II", fixed, 244)
        (channels,) = struct.unpack_from("<I" if old else "<H", fixed, 252)
        header = struct.unpack_from("<q", fixed, 184)[0] if old else struct.unpack_from("<H", fixed, 184)[0] * 256
        if not 1 <= channels <= guards.MAX_CHANNELS:
            most = guards.MAX_CHANNELS
            raise ValueError(f"{path}: a GDF file must have between 1 and {most} channels, got {channels}")
        if header != (needed := 256 * (channels + 1)):
            raise ValueError(f"{path} is damaged: a header of {channels} channels must have {needed} bytes")
        guards.check_size(path, header, f"{channels} channels")
        # The length of a record is a fraction, and MNE would divide by zero.
        if records < 0 or not numerator or not denominator:
            raise ValueError(f"{path} is damaged: {records} records of {numerator}/{denominator} s")
        variable = file.read(256 * channels)
        names = tuple(
            variable[16 * i : 16 * i + 16].partition(b"\0")[0].decode("latin-1").strip() for i in range(channels)
        )
        limits = np.frombuffer(variable, "<f8", 2 * channels, 104 * channels)
        samples = np.frombuffer(variable, "<i4", channels, 216 * channels).astype(np.int64)
        types = np.frombuffer(variable, "<i4", channels, 220 * channels)
        if not np.isfinite(limits).all():
            raise ValueError(f"{path} is damaged: a physical minimum or maximum is not a finite number")
        if (samples < 1).any() or samples.max() * denominator / numerator > guards.MAX_RATE:
            raise ValueError(f"{path} is damaged: channels have {samples.min()} to {samples.max()} samples a record")
        if not np.isin(types, np.flatnonzero(_GDF_BYTES)).all():
            raise ValueError(f"{path} is damaged: a channel's numbers have no known type")
        end = header + records * int((samples * np.array(_GDF_BYTES)[types]).sum())
        guards.check_size(path, end, f"{records} records")
        file.seek(end)
        table = file.read(8)
    if size > end and (not old or table[0] in (1, 3)):
        if len(table) < 8:
            raise ValueError(f"{path} is truncated: its table of events has {len(table)} bytes")
        # Version 1 keeps the rate in three bytes and the number in four, version 2 the other way round.
        count = struct.unpack_from("<I", table, 4)[0] if version < 1.94 else int.from_bytes(table[1:4], "little")
        guards.check_size(path, end + 8 + count * (12 if table[0] == 3 else 6), f"{count} events")
    return names


def check_fif(path: Path) -> list[Path]:
    """All parts of a FIF file, after a check that they lie in its own folder and that no tag is larger than its file.

    The first part of a recording that MNE split names the second, and so on.
    """
    files = [path]
    for file in files:
        names, later = _following_parts(file)
        if later and file == path:
            warn(f"{path} is a later part of a recording that was split, and its times begin anew: give the first part")
        for name in names:
            guards.check_local(name, file, "next part")
            following = file.parent / name
            if following not in files and following.exists():
                files.append(following)
    return files


def _following_parts(path: Path) -> tuple[list[str], bool]:
    """What a FIF file calls its next part, and if it names one before; a ValueError where a tag does not fit."""
    guards.check_regular(path)
    packed = path.name.lower().endswith(".gz")
    size = _unpacked_size(path) if packed else os.path.getsize(path)
    names: list[str] = []
    later = False
    with guards.damage_is_an_error(path), gzip.open(path) if packed else path.open("rb") as file:

        def tag(pos: int) -> tuple[int, int, int]:
            """Kind, size and `next` of the tag at `pos`."""
            file.seek(pos)
            kind, _, length, following = struct.unpack(">iIii", file.read(16))
            if not 0 <= length <= size - pos - 16:
                raise _damaged(path, "a tag ends after the file")
            return kind, length, following

        tags, pos, directory = [], 0, 0
        visited: set[int] = set()
        while pos + 16 <= size:
            kind, length, following = tag(pos)
            tags.append((pos, kind))
            if kind == _FIF_DIRECTORY and length == 4:
                (directory,) = struct.unpack(">i", file.read(4))
            if following < 0:
                break
            # A chain may point back, after a tag was written anew at the end; a circle would be read for ever.
            visited.add(pos)
            pos = following or pos + 16 + length
            if pos in visited:
                raise _damaged(path, "a tag points back to one that was read")
        listings = [tags]
        # Most files also hold a list of all tags, which need not be the same ones.
        if 0 < directory <= size - 16:
            _, length, _ = tag(directory)
            entries = np.frombuffer(file.read(length // 16 * 16), ">i4").reshape(-1, 4)[:, [3, 0]]
            listings.append([(int(position), int(kind)) for position, kind in entries if kind != -1])
        for listing in listings:
            role, name = 0, ""
            for pos, kind in [*listing, (0, _FIF_BLOCK_START)]:
                if pos < 0:
                    raise _damaged(path, "a tag lies before the file")
                _, length, _ = tag(pos)
                if kind == _FIF_BLOCK_START:  # a block's role says whether its name is that of the part before
                    if name and role != _FIF_ROLE_PREVIOUS:
                        names.append(name)
                    role, name = 0, ""
                elif kind == _FIF_ROLE and length == 4:
                    (role,) = struct.unpack(">i", file.read(4))
                    later = later or role == _FIF_ROLE_PREVIOUS
                elif kind == _FIF_NAME_OF_ANOTHER:
                    name = file.read(length).decode("latin-1")
                elif kind == _FIF_NUMBER_OF_ANOTHER and length == 4 and not name:
                    (number,) = struct.unpack(">i", file.read(4))
                    name = re.sub(r"(-\d+)?(\.fif(?:\.gz)?)$", rf"-{number}\2", path.name)
    return names, later


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} cannot be read: truncated, damaged or not what its name says ({why})")


def _unpacked_size(path: Path) -> int:
    """Bytes in a ``.gz`` file; a ValueError where a few bytes unpack to more than any signal does."""
    # A signal packs to a tenth or so. A file that unpacks to much more was made to fill the memory.
    limit = 1000 * os.path.getsize(path) + 2**20
    with guards.damage_is_an_error(path), gzip.open(path) as file:
        size = 0
        while block := file.read(2**20):
            size += len(block)
            if size > limit:
                raise ValueError(f"{path} unpacks to more than 1000 times its size, so it is not read")
    return size
