"""Files of recordings, read from header to last sample."""

import struct
from pathlib import Path

import numpy as np
from support.fuzzing.formats import Format

from mvpa_ts.ieeg import Recording, Segments, read_recording
from mvpa_ts.ieeg.simulation.writing import write_edf, write_swec

RATE, SECONDS = 64, 8


def signal(channels: int = 3, rate: int = RATE) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 50, (channels, SECONDS * rate))


def made(channels: int = 3, rate: int = RATE, subject: str = "S01") -> Recording:
    names = [f"A{i + 1}" for i in range(channels)]
    seizures = [(2.0, 4.5)]
    return Recording.from_array(
        signal(channels, rate), rate, names, "µV", subject=subject, seizures=seizures, preprocessed=True
    )


def read(path: Path) -> None:
    """Open, read every sample, make segments of it."""
    recording = read_recording(path)
    if recording.num_samples * len(recording.channel_names) > 10**7:
        recording.read(0, 1000)
        return
    x = recording.read(0, recording.num_samples)
    assert x.shape == (len(recording.channel_names), recording.num_samples)
    assert all(0 <= onset <= offset <= recording.duration for onset, offset in recording.seizures)
    if 5 <= recording.duration < 200:
        values, valid = Segments(recording).read(0, 1)
        assert np.isfinite(values).all()
        assert np.abs(values[:, valid.all(0).any()]).max(initial=0) < 1e9


def make_edf(folder: Path) -> None:
    write_edf(made(), folder / "x.edf")


def make_bdf(folder: Path) -> None:
    import edfio

    signals = [
        edfio.BdfSignal(row, RATE, label=f"A{i}", physical_dimension="uV", physical_range=(-400, 400))
        for i, row in enumerate(signal())
    ]
    edfio.Bdf(signals, annotations=[edfio.EdfAnnotation(2, 2.5, "seizure")]).write(folder / "x.bdf")


def make_gdf(folder: Path) -> None:
    channels, head = 2, bytearray(256 * 3)
    head[:8] = b"GDF 2.20"
    struct.pack_into("<H", head, 184, channels + 1)
    struct.pack_into("<qIIH", head, 236, SECONDS, 1, 1, channels)
    for i in range(channels):
        head[256 + 16 * i : 258 + 16 * i] = f"A{i}".encode()
        struct.pack_into("<H", head, 256 + 102 * channels + 2 * i, 4275)
        for place, value in ((104, -3000.0), (112, 3000.0), (120, -3000.0), (128, 3000.0)):
            struct.pack_into("<d", head, 256 + place * channels + 8 * i, value)
        struct.pack_into("<i", head, 256 + 216 * channels + 4 * i, RATE)
        struct.pack_into("<i", head, 256 + 220 * channels + 4 * i, 3)
    x = signal(channels).astype("<i2").reshape(channels, SECONDS, RATE).transpose(1, 0, 2)
    events = bytes([1]) + (2).to_bytes(3, "little") + struct.pack("<f2I2H", RATE, 10, 90, 1, 2)
    (folder / "x.gdf").write_bytes(bytes(head) + x.tobytes() + events)


def as_raw(channels: int = 3, rate: int = RATE):
    import mne

    info = mne.create_info([f"A{i + 1}" for i in range(channels)], rate, "seeg")
    raw = mne.io.RawArray(signal(channels, rate) * 1e-6, info, verbose="error")
    return raw.set_annotations(mne.Annotations([2.0], [2.5], ["seizure"]))


def make_brainvision(folder: Path) -> None:
    import mne

    mne.export.export_raw(folder / "x.vhdr", as_raw(), verbose="error")


def make_fif(folder: Path) -> None:
    as_raw().save(folder / "x_raw.fif", verbose="error")


def make_bids(folder: Path) -> None:
    place = folder / "sub-01" / "ieeg"
    place.mkdir(parents=True)
    (folder / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.9.0"}')
    (folder / "participants.tsv").write_text("participant_id\tage\tsex\thand\nsub-01\t34\tF\tR\n")
    stem = place / "sub-01_task-x"
    write_edf(made(), Path(f"{stem}_ieeg.edf"))
    rows = "".join(f"A{i}\tSEEG\tuV\tgood\n" for i in (1, 2, 3))
    Path(f"{stem}_channels.tsv").write_text(f"name\ttype\tunits\tstatus\n{rows}")
    Path(f"{stem}_events.tsv").write_text("onset\tduration\ttrial_type\n2.0\t2.5\tseizure\n6\tn/a\tspike\n")
    Path(f"{stem}_ieeg.json").write_text('{"TaskName": "x", "PowerLineFrequency": 50, "SamplingFrequency": 64}')
    (place / "sub-01_space-ACPC_electrodes.tsv").write_text("name\tx\ty\tz\tsize\nA1\t1\t2\t3\t4\nA2\t1\t2\tn/a\t4\n")
    (place / "sub-01_space-ACPC_coordsystem.json").write_text(
        '{"iEEGCoordinateSystem": "ACPC", "iEEGCoordinateUnits": "mm"}'
    )


def read_bids(folder: Path) -> None:
    from mvpa_ts.ieeg.recordings.bids import electrode_positions

    path = folder / "sub-01" / "ieeg" / "sub-01_task-x_ieeg.edf"
    electrode_positions(path)
    read(path)


def make_swec(folder: Path) -> None:
    write_swec(made(rate=512, subject="ID90"), folder, part_hours=4 / 3600)


FORMATS = (
    Format("EDF", make_edf, lambda folder: read(folder / "x.edf"), ("x.edf",)),
    Format("BDF", make_bdf, lambda folder: read(folder / "x.bdf"), ("x.bdf",)),
    Format("GDF", make_gdf, lambda folder: read(folder / "x.gdf"), ("x.gdf",)),
    Format("BrainVision", make_brainvision, lambda folder: read(folder / "x.vhdr"), ("x.vhdr", "x.vmrk", "x.eeg")),
    Format("FIF", make_fif, lambda folder: read(folder / "x_raw.fif"), ("x_raw.fif",)),
    Format("BIDS tables", make_bids, read_bids, ("**/*.tsv", "**/*.json")),
    Format("SWEC HDF5", make_swec, lambda folder: read(folder / "ID90"), ("ID90/*.h5",)),
)
