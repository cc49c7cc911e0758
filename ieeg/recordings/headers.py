"""Headers of GDF and FIF files, checked before MNE reads them: sizes, and names of other files."""

from __future__ import annotations

import gzip
import os
import re
import struct
from pathlib import Path

import numpy as np

from mvpa_ts.checks import warn
from mvpa_ts.ieeg.recordings import guards
from mvpa_ts.ieeg.recordings.edf import in_utf8

# By the number of a GDF data type; 0 where there is none.
_GDF_BYTES = (0, 1, 1, 2, 2, 4, 4, 8, 8, 0, 0, 0, 0, 0, 0, 0, 4, 8)
# Codes of volts in GDF 2; those of thousandths, millionths and billionths follow as SI has them.
_GDF_UNITS = {4256: "V", 4274: "mV", 4275: "µV", 4276: "nV"}
# FIFF_DIR_POINTER, FIFF_BLOCK_START, FIFF_REF_ROLE with FIFFV_ROLE_PREV_FILE, FIFF_REF_FILE_NUM, FIFF_REF_FILE_NAME
_FIF_DIRECTORY, _FIF_BLOCK_START = 101, 104
_FIF_ROLE, _FIF_ROLE_PREVIOUS, _FIF_NUMBER_OF_ANOTHER, _FIF_NAME_OF_ANOTHER = 115, 1, 117, 118


def check_gdf(path: Path) -> tuple[list[str], list[str]]:
    """Check what a GDF header promises against the file's size; its channels' names and units.

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

        def texts(start: int, width: int) -> list[str]:
            fields = (variable[start + width * i :][:width] for i in range(channels))
            return [in_utf8(field.partition(b"\0")[0].decode("latin-1").strip()) for field in fields]

        names, codes = texts(0, 16), np.frombuffer(variable, "<u2", channels, 102 * channels)
        units = texts(96 * channels, 8) if old else [_GDF_UNITS.get(code, "") for code in codes.tolist()]
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
    return names, units


def check_fif(path: Path) -> list[Path]:
    """All parts of a FIF file, after a check that they lie in its own folder and that no tag is larger than its file.

    The first part of a recording that MNE split names the second, and so on.
    """
    if path.suffix == ".GZ":  # MNE takes it for unpacked
        raise ValueError(f"{path} is packed, and MNE needs .gz in small letters to see it: rename it")
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
                raise guards.damaged(path, "a tag ends after the file")
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
                raise guards.damaged(path, "a tag points back to one that was read")
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
                    raise guards.damaged(path, "a tag lies before the file")
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
