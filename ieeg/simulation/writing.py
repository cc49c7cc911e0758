"""Writing recordings: folders of SWEC layout and EDF files."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mvpa_ts.checks import check_switches, listed
from mvpa_ts.files import write_bytes
from mvpa_ts.ieeg.constants import readable
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.preprocessing.signal import PreprocessedSignal
from mvpa_ts.ieeg.recordings.reading import AnyRecording, as_recording
from mvpa_ts.ieeg.recordings.swec import RATES, SEIZURES, SIGNAL

Progress = Callable[[int], object]


def write_swec(
    recording: AnyRecording,
    folder: str | Path,
    *,
    part_hours: float = 24.0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a recording as a subject's folder of the SWEC layout, streamed.

    What is written is what the data set holds: filtered to 0.5 to 120 Hz and referenced to the median, at 512 Hz (1024
    where the recording has that; other rates are resampled), unless the recording is preprocessed already. Bad
    stretches are filled with zeros.

    Parameters
    ----------
    recording : Recording, Raw, path, or (samples, sfreq)
    folder : path
        The subject's folder is made in it.
    part_hours : float
        Length of a part.
    overwrite : bool
        Replace the subject's folder, once the new one is whole.
    progress : callable, optional
        Called with the seconds written since the last call.

    Returns
    -------
    Path
        The subject's folder, with ``…_part_N.h5`` and ``…_total.h5``.

    Raises
    ------
    ValueError
        `part_hours` is not positive.
    FileExistsError
        The folder exists already and `overwrite` is off, or it holds files that are no part of a recording.
    """
    import h5py
    import hdf5plugin

    check_switches(overwrite=overwrite)
    if not part_hours > 0:
        raise ValueError(f"part_hours must be positive, got {part_hours}")
    recording = as_recording(recording)
    subject = recording.subject_name
    target = Path(folder) / subject
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists already: remove it or write elsewhere")
    check_replaceable(target)
    rate = recording.sfreq if recording.sfreq in RATES else RATES[0]
    settings = Preprocessing(sfreq=rate, reference="median" if len(recording.channel_names) > 1 else None)
    if recording.preprocessed:
        settings = Preprocessing(sfreq=rate, band=None, notch=None, reference=None)
    stream = PreprocessedSignal(recording, settings)
    channels, chunk = len(stream.channel_names), int(180 * rate)  # of 3 minutes
    part_samples = max(round(part_hours * 3600 * rate), 1)
    bounds = [*range(0, stream.num_samples, part_samples), stream.num_samples]

    attributes = {"sampling_rate": int(rate), "patient": subject, "channels": channels}
    target.parent.mkdir(parents=True, exist_ok=True)
    # HDF5 may crash on a disk that gets full. In MB:
    needed, free = 4 * channels * stream.num_samples / 1e6, shutil.disk_usage(target.parent).free / 1e6
    if needed > free:
        raise OSError(f"{target} takes {readable(needed)} MB, and {readable(free)} are free: make room there")
    # Made beside the target and renamed at the end: a subject's folder is whole or not there.
    partial = target.with_name(f".{subject}.partial")
    # Of a run that was killed.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    names = [f"{subject}_part_{number}.h5" for number in range(1, len(bounds))]
    parts = [*zip(names, bounds, bounds[1:], strict=False)]
    for name, start, stop in parts:
        with h5py.File(partial / name, "w") as file:
            file.attrs.update(attributes)
            dataset = file.create_dataset(
                SIGNAL,
                (channels, stop - start),
                np.float32,
                chunks=(channels, min(chunk, stop - start)),
                **hdf5plugin.Blosc(cname="lz4hc", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE),
            )
            for low in range(start, stop, chunk):
                high = min(low + chunk, stop)
                signal, bad = stream.read(low, high)
                if bad is not None:
                    signal[bad] = 0.0
                dataset[:, low - start : high - start] = signal
                if progress is not None:
                    progress(round((high - low) / rate))
    # As the data set has it: the total file points at the parts and holds no samples.
    layout = h5py.VirtualLayout((channels, stream.num_samples), np.float32)
    for name, start, stop in parts:
        layout[:, start:stop] = h5py.VirtualSource(name, SIGNAL, (channels, stop - start))
    with h5py.File(partial / f"{subject}_total.h5", "w", libver="latest") as file:
        file.attrs.update(attributes)
        file.create_virtual_dataset(SIGNAL, layout)
        file["info/files"] = np.array(names, dtype=h5py.string_dtype())
        table = np.array([*recording.seizures], [("onsets", "f8"), ("offsets", "f8")])
        file[SEIZURES] = table.reshape(-1, 1)
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)
    return target


def check_replaceable(target: Path) -> None:
    """Raise a FileExistsError where a subject's folder holds anything but the files that `write_swec` writes."""
    if not target.exists():
        return
    others = [target.name]
    if target.is_dir() and not target.is_symlink():
        written = re.compile(re.escape(target.name) + r"_(?:part_\d+|total)\.h5")
        others = sorted(path.name for path in target.iterdir() if not (written.fullmatch(path.name) and path.is_file()))
    if others:
        raise FileExistsError(
            f"{target} holds more than a recording of the SWEC layout ({listed(others, 3)}) and is not replaced: "
            "move that away, or write elsewhere"
        )


def write_edf(recording: AnyRecording, path: str | Path) -> Path:
    """Write a recording as an EDF+ file in µV, seizures as annotations.

    The library that writes EDF wants the whole signal, so it must fit into memory; for days write SWEC files.

    Parameters
    ----------
    recording : Recording, Raw, path, or (samples, sfreq)
        Not filtered or referenced. NaN is written as 0, which EDF cannot tell from it.
    path : path
        Ends in ``.edf``; an existing file is replaced.

    Raises
    ------
    ValueError
        The path does not end in .edf, or the samples of a second are no whole number.
    """
    import edfio

    path = Path(path)
    if path.suffix.lower() != ".edf":
        raise ValueError(f"path must end in .edf, got {path.name}")
    recording = as_recording(recording)
    if recording.sfreq != round(recording.sfreq):
        raise ValueError(f"sfreq must be a whole number of Hz to write EDF, {recording.name} has {recording.sfreq} Hz")
    per_second = round(recording.sfreq)
    x = np.nan_to_num(recording.read(0, recording.num_samples), nan=0.0, posinf=0.0, neginf=0.0)
    # Whole records of one second: the last one is filled up by the last value, as a stopped amplifier does.
    x = np.pad(x, [(0, 0), (0, -x.shape[1] % per_second)], mode="edge")
    signals = []
    for name, values in zip(recording.channel_names, x, strict=True):
        limit = float(np.ceil(max(np.abs(values).max(), 1.0)))
        bounds = (-limit, limit)
        signals.append(edfio.EdfSignal(values, per_second, label=name, physical_dimension="uV", physical_range=bounds))
    annotations = [edfio.EdfAnnotation(onset, offset - onset, "seizure") for onset, offset in recording.seizures]
    if recording.annotated and not annotations:
        # Without a word of seizures a reader could not tell "none" from "nobody looked".
        annotations = [edfio.EdfAnnotation(0.0, recording.duration, "bckg")]  # SzCORE's word for no seizure
    edf = edfio.Edf(signals, data_record_duration=1, annotations=annotations)
    # To a file it would write by numpy, which says neither the file's name nor that the disk is full.
    edf.write(content := io.BytesIO())
    write_bytes(path, content.getvalue())
    return path
