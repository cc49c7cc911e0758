"""``mvpformer plot``: one figure from a detection, a recording or a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvpa_ts.ieeg.commands import main as common
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser
from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.recordings.bids import electrode_positions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mvpa_ts.ieeg.model.component_maps import ComponentMaps
    from mvpa_ts.ieeg.preprocessing.segments import Segments

DESCRIPTION = """Draw one figure; the output's ending (.png, .pdf, .svg) chooses the format.

  timeline      probability over time of a folder that `mvpformer detect` wrote
  traces        the preprocessed signal of a recording between --onset and --offset
  channels      where a recording's channels lie, coloured by RMS
  attention     channel or time term of a model's attention on a recording, each layer and head

Examples: mvpformer plot timeline results/patient -o timeline.png
          mvpformer plot attention patient.edf --model runs/patient/model --before demo-base -o map.png
"""


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = command_line().parse_args(arguments)
    if Path(options.output).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise CommandError(f"--output must end in .png, .pdf or .svg, got {options.output}")
    if not Path(options.source).exists():
        raise CommandError(f"no file or folder {options.source}")
    common.check_output_folder(Path(options.output).parent)
    import matplotlib as mpl

    # A command draws into files, also where there is no display.
    mpl.use("Agg")
    from mvpa_ts.ieeg.figures import save_figure

    save_figure(KINDS[options.kind](options), options.output)
    print(f"see {options.output}")


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("plot", DESCRIPTION)
    parser.add_argument("kind", choices=tuple(KINDS), help="what to draw, see above")
    parser.add_argument("source", help="a detection's folder for timeline, else a recording")
    parser.add_argument("-o", "--output", required=True, help="file to write")
    parser.add_argument("--onset", type=float, default=0.0, help="traces, attention: from here (s)")
    parser.add_argument("--offset", type=float, help="traces: to here (s); 30 s by default")
    parser.add_argument("--detection", help="traces: folder whose events are shaded")
    parser.add_argument("--channels", default="auto", help="auto (up to 32), all, or names with commas")
    common.add_reading_options(parser)
    parser.add_argument("--model", help="attention: folder of the model, or hf://OWNER/NAME")
    parser.add_argument("--before", help="attention: folder of the model before training, to compare")
    parser.add_argument("--windows", type=int, default=4, help="attention: windows that are averaged")
    parser.add_argument("--term", choices=("channel", "time"), default="channel", help="attention: which term")
    parser.add_argument("--layer", type=int, help="attention: one layer only, from 0; -1 is the last")
    return parser


def _timeline(options: Any) -> Figure:
    from mvpa_ts.ieeg.detection.detection import read_detection

    return read_detection(options.source).plot()


def _traces(options: Any) -> Figure:
    from mvpa_ts.ieeg.detection.detection import detection_of
    from mvpa_ts.ieeg.detection.plots import plot_traces

    segments = _segments(options)
    end = options.onset + 30.0 if options.offset is None else options.offset
    if options.offset is not None and not end > options.onset:
        raise CommandError(f"--offset must be after --onset {options.onset:g} s, got {end:g} s")
    end = min(end, segments.recording.duration)
    if not 0 <= options.onset < end:
        raise CommandError(
            f"--onset must be from 0 to the end of the recording, got {options.onset:g} s: "
            f"the recording lasts {segments.recording.duration:.1f} s"
        )
    events = detection_of(segments.recording, options.detection).events if options.detection else []
    return plot_traces(segments, options.onset, end, events, segments.recording.seizures)


def _channels(options: Any) -> Figure:
    from mvpa_ts.ieeg.detection.plots import channel_rms, plot_channel_map

    segments = _segments(options)
    positions = electrode_positions(options.source)
    return plot_channel_map(segments.channel_names, channel_rms(segments), segments.recording.dropped, positions)


def _attention(options: Any) -> Figure:
    from mvpa_ts.ieeg.model.component_maps import plot_component_maps

    if options.model is None:
        raise CommandError("the figure attention needs a model: pass --model")
    if options.windows < 1:
        raise CommandError(f"--windows must be at least 1, got {options.windows}")
    for model in (options.model, options.before):
        common.check_model(model)
    after = _maps(options, options.model)
    before = _maps(options, options.before) if options.before else None
    return plot_component_maps(after, before, options.term, options.layer)


def _maps(options: Any, folder: str) -> ComponentMaps:
    import torch
    from tqdm import tqdm

    from mvpa_ts.ieeg.detection.networks import load_networks
    from mvpa_ts.ieeg.model.component_maps import component_maps

    model, *others = load_networks(folder)
    if others:
        print(f"{folder} holds {len(others) + 1} networks; the figure shows the first")
    segments = _segments(options)
    length = min(model.config.context, segments.num_segments)
    first = int(options.onset // SEGMENT_SECONDS)
    if first + length > segments.num_segments:
        raise CommandError(f"a window of {length * SEGMENT_SECONDS:g} s does not fit from --onset {options.onset}")
    starts = range(first, segments.num_segments - length + 1, length)[: options.windows]
    windows = (segments.read(start, start + length) for start in tqdm(starts, desc=Path(folder).name, unit="window"))
    signals = ((torch.from_numpy(signal)[None], torch.from_numpy(valid)[None]) for signal, valid in windows)
    return component_maps(model, signals, segments.channel_names)


def _segments(options: Any) -> Segments:
    from mvpa_ts.ieeg.preprocessing.segments import Segments
    from mvpa_ts.ieeg.preprocessing.selection import with_channels

    recording = common.read_named(options.source, options.channels, **common.reading_options(options))
    return with_channels(Segments(recording), common.channel_choice(options.channels))


# What can be drawn.
KINDS: dict[str, Callable[[Any], Figure]] = {
    "timeline": _timeline,
    "traces": _traces,
    "channels": _channels,
    "attention": _attention,
}
