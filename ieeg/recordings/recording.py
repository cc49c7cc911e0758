"""One notion of a recording: a lazy signal in µV with names, a rate, a subject and seizure intervals."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mvpa_ts.checks import check_switches, listed, warn
from mvpa_ts.ieeg.constants import counted
from mvpa_ts.ieeg.recordings.channels import natural_order
from mvpa_ts.ieeg.recordings.guards import MAX_RATE, LeftOutWarning, warn_left_out
from mvpa_ts.ieeg.recordings.levels import warn_if_implausible

if TYPE_CHECKING:
    import mne

Signal = NDArray[np.float32]
Interval = tuple[float, float]
Channels = Sequence[str] | Sequence[int]  # by name or by place
P = ParamSpec("P")

# Microvolts in one of each unit, by its lower-case name. BIDS once wrote microV.
UNITS = {"v": 1e6, "mv": 1e3, "µv": 1.0, "uv": 1.0, "microv": 1.0, "nv": 1e-3}

# Samples per second; resampling from fewer would take filters without end.
MIN_RATE = 0.1


class Source(Protocol):
    """Where samples come from; what is opened lazily must not be pickled, so that every worker opens its own."""

    def read(self, start: int, stop: int, channels: NDArray[np.intp]) -> Signal:
        """Samples [start, stop) of the channels with these indices, [C, stop − start] in µV."""


class ArraySource:
    """Samples in memory."""

    def __init__(self, values: ArrayLike, scale: float = 1.0) -> None:
        self.values = np.asarray(values)
        if self.values.dtype == np.float16:  # in which volts times a million are infinite
            self.values = self.values.astype(np.float32)
        self.scale = scale

    def read(self, start: int, stop: int, channels: NDArray[np.intp]) -> Signal:
        """See `Source.read`."""
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and so a bad sample
            return (self.values[channels, start:stop] * self.scale).astype(np.float32)


class Recording:
    """A recording that reads its samples only when asked.

    Parameters
    ----------
    source : Source
        Reads samples in µV.
    sfreq : float
        Samples per second, between 0.1 and 1,000,000.
    channel_names : sequence of str
    num_samples : int
    subject : str, optional
        Who was recorded. Splits and balanced sampling use it.
    name : str
        What reports call the recording.
    seizures : sequence of (onset, offset), optional
        Half-open intervals in seconds from the start; sorted, cut to the recording, joined where they overlap. An
        empty sequence states that there is none. None, the default, says that nobody knows: the attribute `annotated`
        is then False, and `seizures` is empty.
    metadata : mapping, optional
        What the file says of subject and recording (age, sex, …); never a name or a birth date.
    preprocessed : bool
        The samples are already filtered and referenced, as in SWEC. `default_preprocessing` then only changes the rate.
    dropped : mapping, optional
        Channels of the file that are left out, and why.
    channel_indices : sequence of int, optional
        Place of each channel in the source; all in order by default.
    first_sample : int
        Sample of the source with which the recording begins.
    bad_spans : sequence of (onset, offset), optional
        Stretches that somebody marked as bad (``BAD_…`` in MNE): a detector does not score them.
    notes : sequence of str, optional
        What was doubted, with a warning, when the recording was read, and kept.
    left_out : sequence of str, optional
        What was left out, with a warning, such as rows and words of tables.

    Raises
    ------
    ValueError
        The rate is out of range, there is no sample or no channel, a name appears twice, or a seizure ends before it
        begins.

    Examples
    --------
    >>> import numpy as np
    >>> recording = Recording.from_array(np.ones((2, 5120)), 512.0, ["A1", "A2"], "mV", seizures=[(2.0, 4.0)])
    >>> recording
    <Recording array: 2 channels, 10.0 s at 512 Hz, 1 seizure>
    >>> recording.read(0, 3, channels=["A2"])
    array([[1000., 1000., 1000.]], dtype=float32)
    """

    def __init__(
        self,
        source: Source,
        *,
        sfreq: float,
        channel_names: Sequence[str],
        num_samples: int,
        subject: str | None = None,
        name: str = "recording",
        seizures: Sequence[Interval] | None = None,
        metadata: Mapping[str, Any] | None = None,
        preprocessed: bool = False,
        dropped: Mapping[str, str] | None = None,
        channel_indices: Sequence[int] | None = None,
        first_sample: int = 0,
        bad_spans: Sequence[Interval] = (),
        notes: Sequence[str] = (),
        left_out: Sequence[str] = (),
    ) -> None:
        check_switches(preprocessed=preprocessed)
        names = tuple(channel_names)
        if isinstance(channel_names, str) or not all(isinstance(channel, str) for channel in names):
            raise ValueError(f"{name}: channel_names must be a list of names, got {channel_names!r:.100}")
        # Programs that store texts of one length fill them with zeros.
        self.channel_names = tuple(channel.rstrip("\0") for channel in names)
        number = isinstance(sfreq, (int, float, np.integer, np.floating)) and not isinstance(sfreq, bool)
        if not number or not MIN_RATE <= sfreq <= MAX_RATE:
            raise ValueError(f"{name}: sfreq must lie between {MIN_RATE:g} and {MAX_RATE:g} Hz, got {sfreq!r}")
        # Everything later divides by the length or takes a last sample.
        if num_samples < 1:
            raise ValueError(f"{name}: a recording must have at least one sample, got none")
        if not self.channel_names:
            raise ValueError(f"{name}: no channel" + (f"; dropped: {dict(dropped)}" if dropped else ""))
        # Channels are asked for by name, and a name that is there twice would always give the first.
        if len(set(self.channel_names)) < len(self.channel_names):
            twice = sorted({n for n in self.channel_names if self.channel_names.count(n) > 1})
            raise ValueError(f"{name}: channel names must differ, {twice} appear twice")
        self.source = source
        self.sfreq = float(sfreq)
        self.num_samples = int(num_samples)
        self.subject = subject.rstrip("\0") if isinstance(subject, str) else subject
        self.name = name
        self.metadata = dict(metadata or {})
        self.preprocessed = preprocessed
        self.dropped = dict(dropped or {})
        self.first_sample = int(first_sample)
        self.notes, self.left_out = tuple(notes), tuple(left_out)
        self._indices = np.arange(len(self.channel_names)) if channel_indices is None else np.asarray(channel_indices)
        if len(self._indices) != len(self.channel_names):
            raise ValueError(f"{name}: {len(self._indices)} channel_indices for {len(self.channel_names)} channels")
        # None and an empty list differ: only the second says that somebody looked.
        self.annotated = seizures is not None
        # zip(onsets, offsets) can be read once.
        stated = () if seizures is None else [*seizures] if isinstance(seizures, Iterator) else seizures
        self.seizures = tuple(joined_spans(_cut(stated, self.duration, name), name))
        if empty := [on for on, off in stated if on == off]:
            warn_left_out(f"{name}: seizures of no length are left out: at {empty[0]:g} s")
        if outside := [on for on, off in stated if on < off and (on >= self.duration or off <= 0)]:
            warn_left_out(
                f"{name}: seizures outside of the recording, which lasts {self.duration:g} s, are left out: at "
                f"{outside[0]:g} s. Are they in seconds from its start?"
            )
        self.bad_spans = _cut(bad_spans, self.duration, name)

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.num_samples / self.sfreq

    def read(self, start: int, stop: int, channels: Channels | None = None) -> Signal:
        """Samples [start, stop) in µV at the recording's own rate; may hold NaN.

        Parameters
        ----------
        start, stop : int
            Samples; 0 ≤ start ≤ stop ≤ num_samples.
        channels : sequence of str or of int, optional
            Names or indices; all by default.

        Returns
        -------
        ndarray of float32, shape (C, stop − start)

        Raises
        ------
        ValueError
            The range leaves the recording, or a channel is unknown.
        """
        if not (isinstance(start, Integral) and isinstance(stop, Integral)):
            raise ValueError(f"{self.name}: start and stop must be whole numbers, got {start!r} and {stop!r}")
        if not 0 <= start <= stop <= self.num_samples:
            raise ValueError(f"{self.name} has samples [0, {self.num_samples}), asked for [{start}, {stop})")
        indices = self._indices if channels is None else self._indices[self.index(channels)]
        return self.source.read(self.first_sample + start, self.first_sample + stop, indices)

    def read_into(self, out: Signal, column: int, start: int, stop: int, channels: Channels | None = None) -> None:
        """Like `read`, into `out` [C, n] from column `column` on, without fresh memory where possible."""
        if not hasattr(self.source, "read_into"):
            out[:, column : column + stop - start] = self.read(start, stop, channels)
            return
        indices = self._indices if channels is None else self._indices[self.index(channels)]
        self.source.read_into(out, column, self.first_sample + start, self.first_sample + stop, indices)

    def index(self, channels: Channels) -> NDArray[np.intp]:
        """Indices of channels given by name or index."""
        places = {name: i for i, name in enumerate(self.channel_names)}
        places |= {i: i for i in range(len(places))}  # type: ignore[misc]
        if unknown := [channel for channel in channels if channel not in places]:
            wrong, names = (", ".join(map(str, channels)) for channels in (unknown, self.channel_names))
            raise ValueError(f"{self.name} has no channel {wrong}; it has {names}")
        return np.array([places[channel] for channel in channels], dtype=np.intp)  # type: ignore[index]

    def pick(self, channels: Channels) -> Recording:
        """The same recording with these channels, in this order."""
        index = self.index(channels)
        return self.replaced(channel_names=[self.channel_names[i] for i in index], channel_indices=self._indices[index])

    def crop(self, start: float, stop: float) -> Recording:
        """Seconds [start, stop) as a new recording, whose times count from its start."""
        if not (isinstance(start, Real) and isinstance(stop, Real)):
            raise ValueError(f"{self.name}: start and stop must be numbers of seconds, got {start!r} and {stop!r}")
        if not 0 <= start < stop:
            raise ValueError(f"{self.name}: start must be at least 0 and lie before stop, got {start} and {stop} s")
        first, last = round(start * self.sfreq), min(round(stop * self.sfreq), self.num_samples)
        if not 0 <= first < last:
            raise ValueError(f"{self.name} lasts {self.duration:.3f} s, asked for [{start}, {stop}) s")
        shift = first / self.sfreq
        inside = [(on - shift, off - shift) for on, off in self.seizures if on < last / self.sfreq and off > shift]
        return self.replaced(
            num_samples=last - first,
            first_sample=self.first_sample + first,
            seizures=inside if self.annotated else None,
            bad_spans=[(on - shift, off - shift) for on, off in self.bad_spans],
        )

    @property
    def subject_name(self) -> str:
        """The subject, or the recording's name where none is known: it then counts as a subject of its own."""
        return self.subject or self.name

    @property
    def person_known(self) -> bool:
        """Whether `subject` says who was recorded: outside of BIDS and SWEC it is the file's name."""
        # SWEC calls a recording as its subject, and is the one that comes preprocessed.
        return self.subject is not None and (self.subject != self.name or self.preprocessed)

    def with_seizures(self, seizures: Sequence[Interval] | None) -> Recording:
        """The same recording with other seizure intervals; none if empty, unknown if None."""
        return self.replaced(seizures=seizures)

    def fingerprint(self) -> str:
        """Start of the SHA-256 of 100 pieces of 0.25 s, which tells recordings of the same length and name apart.

        The pieces are spread evenly, the first and the last sample are among them.
        """
        # Amplifiers begin with zeros, so the first second alone would make many recordings equal.
        length = min(self.num_samples, math.ceil(self.sfreq / 4))
        starts = np.linspace(0, self.num_samples - length, 100).astype(np.int64)
        digest = hashlib.sha256()
        for start in np.unique(starts).tolist():
            digest.update(np.ascontiguousarray(self.read(start, start + length)).tobytes())
        return digest.hexdigest()[:16]

    def warn(self, text: str) -> None:
        """Warn, and note on the recording that this was said, once."""
        self.notes = tuple(dict.fromkeys((*self.notes, text)))
        warn(text)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keep what the block warns of, once, and apart what was left out; it reaches the user as without this."""
        with recorded_warnings() as said:
            yield
        self.note(said)

    def note(self, said: Sequence[warnings.WarningMessage]) -> None:
        """Keep what was warned of, as `noting`."""
        for item in said:
            if issubclass(item.category, UserWarning):
                kept, text = "left_out" if item.category is LeftOutWarning else "notes", str(item.message)
                setattr(self, kept, (*(other for other in getattr(self, kept) if other != text), text))

    def close(self) -> None:
        """Close the files, if any; the next reading opens them again."""
        if hasattr(self.source, "close"):
            self.source.close()

    def replaced(self, **changes: Any) -> Recording:
        """The same recording with other values for some arguments of the class."""
        names: tuple[str, ...] = ("source", "sfreq", "channel_names", "num_samples", "subject", "name", "metadata")
        names += ("preprocessed", "dropped", "first_sample", "bad_spans", "notes", "left_out")
        settings = {name: getattr(self, name) for name in names}
        settings |= {"seizures": self.seizures if self.annotated else None, "channel_indices": self._indices}
        return Recording(**settings | changes)

    @classmethod
    def from_array(
        cls,
        x: ArrayLike,
        sfreq: float,
        names: Sequence[str],
        unit: str,
        *,
        subject: str | None = None,
        name: str = "array",
        seizures: Sequence[Interval] | None = None,
        preprocessed: bool = False,
    ) -> Recording:
        """A recording of samples in memory.

        Parameters
        ----------
        x : array, shape (C, samples)
        sfreq : float
            Samples per second.
        names : sequence of str
            Of the rows of `x`. The recording has its channels in natural order, L2 before L10.
        unit : {"V", "mV", "µV", "uV", "nV"}
            Of `x`; never guessed, because the model's embedding is blind to most errors of scale.
        subject, name, seizures, preprocessed
            As for the class.

        Raises
        ------
        ValueError
            The samples are no real numbers or have another shape, the unit is unknown, or as for the class.
        """
        values = real_numbers(x, "x")
        if values.ndim != 2 or len(values) != len(names):
            # The most common mistake has an answer of its own.
            turned = ": pass x.T" * (values.ndim == 2 and values.shape[1] == len(names))
            raise ValueError(f"x must have shape ({len(names)} channels, samples), got {values.shape}{turned}")
        recording = cls(
            ArraySource(values, microvolts(unit)),
            sfreq=sfreq,
            channel_names=names,
            num_samples=values.shape[1],
            subject=subject,
            name=name,
            seizures=seizures,
            preprocessed=preprocessed,
        )
        # As in every other recording, because the model compares channels by their distance.
        recording = recording.pick(natural_order(recording.channel_names))
        warn_if_implausible(recording)
        return recording

    @classmethod
    def from_raw(cls, raw: mne.io.BaseRaw, **options: Any) -> Recording:
        """A recording of an MNE Raw, read lazily where the Raw is lazy; see `recording_from_raw` for the options."""
        from mvpa_ts.ieeg.recordings.raw import recording_from_raw

        return recording_from_raw(raw, **options)

    def __repr__(self) -> str:
        channels, seizures = counted(len(self.channel_names), "channel"), counted(len(self.seizures), "seizure")
        return f"<Recording {self.name}: {channels}, {self.duration:.1f} s at {self.sfreq:g} Hz, {seizures}>"


def with_notes(read: Callable[P, Recording]) -> Callable[P, Recording]:
    """Note on the recording that a function reads what it warns of, which reaches the user as without this."""

    @wraps(read)
    def noting(*arguments: P.args, **options: P.kwargs) -> Recording:
        with recorded_warnings() as said:
            recording = read(*arguments, **options)
        recording.note(said)
        return recording

    return noting


@contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Give a list that holds what the block warned of at its end, when it reaches the user as without this."""
    told: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True, action="always") as caught:
            yield told
    finally:
        told += caught
        for said in caught:
            warnings.warn_explicit(said.message, said.category, said.filename, said.lineno, source=said.source)


def real_numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """`values` as an array, NaN where they are masked; a ValueError that calls them `name` if they are no numbers."""
    # numpy's own conversion leaves the mask away, and what lies below it would count.
    masked = isinstance(values, np.ma.MaskedArray)
    array = values.astype(np.float64).filled(np.nan) if masked else np.asarray(values)  # type: ignore[union-attr]
    if array.dtype.kind not in "biufO":
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")
    try:  # Decimal, or None
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError):
        raise ValueError(f"{name} must hold real numbers, got objects of other kinds") from None


def microvolts(unit: str) -> float:
    """Microvolts in one `unit`.

    Examples
    --------
    >>> microvolts("mV")
    1000.0
    """
    if (scale := known_unit(unit)) is None:
        raise ValueError(f"unit must be µV (or uV), mV, V or nV, got {unit!r}")
    return scale


def known_unit(unit: str) -> float | None:
    """Microvolts in one of a unit, None where it is none that we know."""
    return UNITS.get(str(unit).strip().lower().replace("μ", "µ"))


def _cut(seizures: Sequence[Interval], duration: float, name: str) -> tuple[Interval, ...]:
    """Sorted intervals as plain floats, cut to the recording; those outside it are left out."""
    if any(np.shape(seizure) != (2,) or np.asarray(seizure).dtype.kind not in "iuf" for seizure in seizures):
        raise ValueError(f"{name}: seizures must be pairs (onset, offset) in seconds, got {seizures!r:.100}")
    for onset, offset in seizures:
        if not onset <= offset:
            raise ValueError(f"{name}: a seizure must end after it begins, got [{onset}, {offset}) s")
    # A seizure that began before the recording counts from its first sample on.
    cut = sorted((max(float(onset), 0.0), min(float(offset), duration)) for onset, offset in seizures)
    return tuple((onset, offset) for onset, offset in cut if onset < offset)


def warn_of_unannotated(recordings: Iterable[Recording], so: str) -> None:
    """Warn of recordings that do not say whether there is a seizure, of what follows, and of what to add."""
    if names := [recording.name for recording in recordings if not recording.annotated]:
        warn(
            f"{listed(names)}: no annotation says whether there is a seizure, {so}. If there is one, annotate it in "
            "the file or in the table FILE_events.tsv beside it; else a row with the trial_type bckg says so"
        )


def joined_spans(spans: Sequence[Interval], name: str) -> list[Interval]:
    """Spans in order, those that overlap as one: they are two marks of one seizure, which would count twice."""
    joined: list[Interval] = []
    overlaps = []
    for onset, offset in spans:
        if joined and onset < joined[-1][1]:
            overlaps.append(f"{onset:g}")
            joined[-1] = joined[-1][0], max(joined[-1][1], offset)
        else:
            joined.append((onset, offset))
    if overlaps:
        warn(f"{name}: seizures that overlap count as one: at {listed(overlaps)} s")
    return joined
