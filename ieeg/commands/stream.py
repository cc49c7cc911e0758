"""``mvpformer stream``: probabilities and alarms from a running LSL stream."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from mvpa_ts.ieeg.commands import main as common
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser
from mvpa_ts.ieeg.detection.rules import OnlineRule
from mvpa_ts.ieeg.recordings.channels import in_recording_order, natural_order, not_eeg

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvpa_ts.ieeg.detection.streaming import Decision, StreamingDetector

DESCRIPTION = """Seizure probability of each 5 s of a running LSL stream, one line each, until it ends.

Needs mne-lsl: pip install ".[stream]". For research use: do not rely on its alarms.

Examples: mvpformer stream --name amplifier --preprocessing '{"notch": 50}'
          mvpformer stream --name amplifier --model runs/patient/model -o decisions.tsv
"""
EEG_TYPES = {"eeg", "seeg", "ecog", "dbs", "ieeg", "sheeg"}
# MNE-LSL states a unit by its name or by the power of ten of volts.
UNITS = {"0": "V", "-3": "mV", "-6": "µV", "-9": "nV", "volts": "V", "volt": "V"}
UNITS |= {"millivolts": "mV", "microvolts": "µV", "microvolt": "µV", "nanovolts": "nV"}
HEADER = "onset\tprobability\talarm\n"
_PIECE_SECONDS = 5.0  # of a gap, which may last hours, are fed at once
_GAP_SECONDS = 1.0  # timestamps come late by less; more is lost signal
_LONGEST_GAP = 60.0  # a stream that pauses for longer is taken for ended, or for longer than its patience
_CLOCKS = 20  # settings of the clock that are remembered
_CLOCK_DRIFT = 1e-4  # the clocks of the stream and of its timestamps may go apart by so many seconds a second


@dataclass(frozen=True)
class Source:
    """What a stream says of itself."""

    sfreq: float
    names: tuple[str, ...]  # channels that are electrodes, in natural order
    rows: list[int]  # their places in the stream
    unit: str


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = command_line().parse_args(arguments)
    if common.names_baseline(options.model):
        raise CommandError(f"--model {options.model} is a baseline, which a stream does not take: name a model folder")
    common.check_model(options.model)
    if options.name is None and options.source_id is None:
        raise CommandError("the stream must be named: pass --name or --source-id")
    # Two streams in one table could not be told apart.
    if options.output is not None and options.output.exists():
        raise CommandError(f"--output {options.output} exists, and two streams must not share a file: choose another")
    from mvpa_ts.ieeg.detection.streaming import StreamingDetector

    online = OnlineRule(*options.online)
    with contextlib.ExitStack() as stack:
        inlet = connect(options.name, options.source_id, options.wait)
        stack.callback(inlet.close_stream)
        source = described(inlet.get_sinfo(), options.unit, options.channels)
        detector = StreamingDetector(
            options.model,
            source.sfreq,
            source.names,
            options.preprocessing,
            unit=source.unit,
            lookahead=options.lookahead,
            online=online,
            threshold=options.threshold,
        )
        output = None
        if options.output is not None:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(options.output.open("x", encoding="utf-8"))
            output.write(HEADER)
        print(
            f"{len(source.names)} channels at {source.sfreq:g} Hz in {source.unit}; decisions come "
            f"{detector.delay:.1f} s after each 5 s"
            + ("" if options.lookahead == 0 else "; --lookahead 0 decides at once, with other filters at the end"),
            file=sys.stderr,
        )
        count = 0
        for decision in decisions(inlet, source, detector, options.patience, options.seconds):
            count += 1
            show(decision, output)
    print(f"the stream ended: {count} decisions" + (f" in {options.output}" if output else ""), file=sys.stderr)


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("stream", DESCRIPTION)
    parser.add_argument("--name", help="name of the LSL stream")
    parser.add_argument("--source-id", help="source id of the LSL stream, if names are not unique")
    common.add_detector_options(parser)
    parser.add_argument("-o", "--output", type=Path, help="table of decisions, file.tsv; lines are printed either way")
    parser.add_argument("--channels", default="all", help="all electrodes, or names with commas")
    parser.add_argument("--unit", type=common.unit, help="unit, if the stream states none: µV (or uV), mV or V")
    parser.add_argument("--lookahead", type=float, help="seconds that a segment waits for later samples; 0: no wait")
    parser.add_argument("--wait", type=float, default=10.0, help="seconds to look for the stream")
    parser.add_argument("--patience", type=float, default=10.0, help="end after so many seconds without a sample")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so many seconds of signal")
    return parser


def connect(name: str | None, source_id: str | None, wait: float) -> Any:
    """An open inlet of the stream of this name or source."""
    try:
        from mne_lsl.lsl import StreamInlet, resolve_streams
    except ModuleNotFoundError:
        raise CommandError('mvpformer stream needs mne-lsl: pip install ".[stream]" in the clone') from None
    # By name or source, as a laboratory may have several amplifiers.
    streams = resolve_streams(timeout=wait, name=name, source_id=source_id)
    label = name if source_id is None else source_id
    if not streams:
        others = ", ".join(sorted(f"{stream.name} (source {stream.source_id})" for stream in resolve_streams()))
        raise CommandError(f"no LSL stream {label} was found in {wait:g} s; there is {others or 'no other either'}")
    if len(streams) > 1:
        ids = ", ".join(stream.source_id for stream in streams)
        raise CommandError(f"{len(streams)} LSL streams are called {label}: choose one by --source-id ({ids})")
    inlet = StreamInlet(streams[0])
    inlet.open_stream(timeout=wait)
    return inlet


def described(info: Any, unit: str | None, channels: str) -> Source:
    """What the stream is and which of its channels are used.

    Raises
    ------
    CommandError
        It has no rate, no electrodes, no channel of a name, or no unit where none is given.
    """
    if not info.sfreq > 0:
        raise CommandError(f"the stream {info.name} must have a fixed rate: samples at irregular times are not scored")
    names = [str(name) for name in info.get_channel_names() or (f"C{n + 1}" for n in range(info.n_channels))]
    types = info.get_channel_types() or [None] * len(names)
    if channels == "all":
        may_be_eeg = [kind is None or kind.lower() in EEG_TYPES for kind in types]
        rows = [row for row, (name, may) in enumerate(zip(names, may_be_eeg, strict=True)) if may and not not_eeg(name)]
    else:
        chosen = in_recording_order(common.channel_names(channels), names)
        if unknown := [name for name in chosen if name not in names]:
            raise CommandError(f"the stream has no channel {', '.join(unknown)}; it has {', '.join(names)}")
        rows = [names.index(name) for name in chosen]
    if not rows:
        raise CommandError(f"no channel of the stream is an electrode ({', '.join(names)}): name some by --channels")
    rows = [rows[index] for index in natural_order([names[row] for row in rows])]
    if unit is None:
        stated = info.get_channel_units() or [None] * len(names)
        units = {UNITS.get(str(stated[row]).strip().lower(), str(stated[row])) for row in rows}
        if len(units) > 1 or units == {"None"}:
            raise CommandError(
                f"all channels of the stream must state one unit, got {', '.join(sorted(units))}: give --unit"
            )
        (unit,) = units
    return Source(float(info.sfreq), tuple(names[row] for row in rows), rows, unit)


def decisions(
    inlet: Any, source: Source, detector: StreamingDetector, patience: float, seconds: float = math.inf
) -> Iterator[Decision]:
    """Feed what comes to the detector, until nothing came for `patience` seconds or `seconds` of signal were seen.

    Where timestamps come more than a second late, and stay late, samples were lost: as many NaN take their place, so
    that seconds stay seconds. Shorter losses add up until they are a second. A clock that is set is no loss: see
    `_Clock`.
    """
    clock, heard = _Clock(source.sfreq, patience), time.monotonic()
    fed, piece = 0, round(_PIECE_SECONDS * source.sfreq)
    while fed < seconds * source.sfreq:
        samples, times = inlet.pull_chunk(timeout=0.2, max_samples=max(1, round(source.sfreq)))
        if len(times) == 0:
            if time.monotonic() - heard > patience:
                break
            continue
        heard = time.monotonic()
        chunk: NDArray[np.float32] = np.asarray(samples, np.float32)[:, source.rows].T
        pieces: list[NDArray[np.float32]] = []
        begin = 0
        # A chunk may hold signal from both sides of a gap.
        for place, count in clock.lost(times):
            print(f"mvpformer stream: {count / source.sfreq:.1f} s of signal were lost", file=sys.stderr)
            unknown = np.full((len(chunk), piece), np.nan, np.float32)
            pieces += [chunk[:, begin:place], *[unknown] * (count // piece), unknown[:, : count % piece]]
            begin = place
        pieces.append(chunk[:, begin:])
        fed += sum(samples.shape[1] for samples in pieces)
        for piece_samples in pieces:
            yield from detector.feed(piece_samples)
    yield from detector.finish()


class _Clock:
    """Timestamps of a stream beside the number of its samples: which are late because signal was lost."""

    def __init__(self, sfreq: float, patience: float) -> None:
        self._sfreq, self._longest = sfreq, max(patience, _LONGEST_GAP)
        self._expected: float | None = None  # timestamp of the next sample if none is late or lost
        self._set, self._before = 0.0, [0.0]  # by how much the clock was set in all, now and before

    def lost(self, times: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
        """Where in a chunk samples are missing, and how many."""
        places = np.arange(len(times)) / self._sfreq
        stamped = np.isfinite(times)
        # Not lost samples, which leave the steps between the others as they are, but another unit or rate.
        if stamped.sum() > 16 and (step := float(np.quantile(np.diff(times[stamped]), 0.1))) > 2 / self._sfreq:
            raise ValueError(
                f"timestamps must be in seconds and samples at {self._sfreq:g} Hz, got stamps {step:g} apart where "
                f"{1 / self._sfreq:g} s are expected: are they in milliseconds, or is the rate another?"
            )
        if self._expected is None and stamped.any():  # the first stamp sets the clock
            self._expected = float((times - places)[stamped][0])
        # A sample without a stamp is where it is expected.
        late = np.where(stamped, times - (self._expected or 0.0) - places, 0.0)
        inserted = 0
        while True:
            stays_late = np.minimum.accumulate(late[::-1])[::-1]
            stays_early = np.maximum.accumulate(late[::-1])[::-1]
            moved = np.flatnonzero((stays_late > _GAP_SECONDS) | (stays_early < -_GAP_SECONDS))
            if not len(moved):
                break
            place = moved[0]
            step = float(stays_late[place] if stays_late[place] > _GAP_SECONDS else stays_early[place])
            # Nothing is lost where stamps go back, where they return to where they were before, and where they leap by
            # more than a pause after which the stream would have been taken for ended.
            returned = any(abs(self._set + step - before) <= _GAP_SECONDS for before in self._before)
            if step < 0 or returned or step > self._longest:
                way = "back" if step < 0 else "forward"
                print(f"mvpformer stream: the clock was set {way} by {abs(step):.1f} s; no loss", file=sys.stderr)
                self._set += step
                self._before = [*self._before[-_CLOCKS:], self._set]
            else:
                count = round(step * self._sfreq)
                step = count / self._sfreq
                inserted += count
                yield int(place), count
            late[place:] -= np.where(stamped[place:], step, 0.0)
            self._expected = (self._expected or 0.0) + step
        if self._expected is not None:
            passed = len(times) / self._sfreq
            # A stamp far too early that does not stay so is a slip of that one stamp.
            earliest = late[late > -_GAP_SECONDS].min(initial=math.inf)
            self._expected += passed + min(earliest, _CLOCK_DRIFT * (passed + inserted / self._sfreq))


def show(decision: Decision, output: TextIO | None) -> None:
    """Print a decision, and add it to the table at once: what was decided is there whatever comes."""
    probability = "n/a" if math.isnan(decision.probability) else f"{decision.probability:.4f}"
    line = f"{decision.start:.1f}\t{probability}\t{int(decision.alarm)}"
    print(line, flush=True)
    if output is not None:
        output.write(line + "\n")
        output.flush()
