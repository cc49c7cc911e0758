"""``mvpformer simulate``: recordings with seizures that are made up, for trying every other command."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from mvpa_ts.ieeg.commands.main import CommandError, CommandParser, quote
from mvpa_ts.ieeg.constants import counted
from mvpa_ts.ieeg.simulation.simulate import Difficulty, simulate_cohort

DESCRIPTION = """Write intracranial recordings of made-up subjects.

Seizures of a neural-mass model (Epileptor) lie in pink noise with line noise, artefacts and rhythmic bursts. The same
arguments give the same files.

Examples: mvpformer simulate cohort --subjects 8 --hours 2 --channels 8,12
          mvpformer simulate cohort --format edf --seizures 0 --session 1
"""


def main(arguments: list[str]) -> None:
    """Write recordings of made-up subjects as SWEC folders or EDF files."""
    options = command_line().parse_args(arguments)
    written = write_cohort(
        options.out,
        kind=options.format,
        part_hours=options.part_hours,
        overwrite=options.overwrite,
        num_subjects=options.subjects,
        first_subject=options.first_subject,
        num_channels=options.channels,
        seed=options.seed,
        duration=options.hours * 3600,
        sfreq=options.sfreq,
        num_seizures=options.seizures,
        cohort=options.cohort,
        session=options.session,
        difficulty=Difficulty(**{field.name: getattr(options, field.name) for field in fields(Difficulty)}),
    )
    command = f"mvpformer detect {quote(str(options.out))} -o results"
    print(f"{counted(len(written), 'recording')} in {options.out}; next: {command}")


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("simulate", DESCRIPTION)
    parser.add_argument("out", type=Path, help="folder to write to; made if need be")
    parser.add_argument("--subjects", type=int, default=4, help="number of subjects, one recording each")
    parser.add_argument(
        "--first-subject",
        type=int,
        default=101,
        help="number of the first subject, S101; training simulates from S01 on",
    )
    parser.add_argument("--hours", type=float, default=1.0, help="length of each recording")
    parser.add_argument("--channels", type=channel_counts, default="8", help="one number, or several in turn: 4,8")
    parser.add_argument("--seizures", type=int, help="seizures in each recording; by default one an hour")
    parser.add_argument(
        "--cohort",
        choices=("usual", "hard"),
        default="usual",
        help="hard: what is loud is harmless, seizures are weak, focal and spread; give 2 hours or more",
    )
    parser.add_argument("--sfreq", type=float, default=512.0, help="samples per second; SWEC files have 512 or 1024")
    parser.add_argument("--format", choices=("swec", "edf"), default="swec", help="folders of the SWEC layout, or EDF+")
    parser.add_argument("--part-hours", type=float, default=24.0, help="length of a part of a SWEC recording")
    parser.add_argument("--seed", type=int, default=0, help="random seed; another seed gives other subjects")
    parser.add_argument(
        "--session",
        type=int,
        default=0,
        help="number of the recording: another one is of the same subjects at another time. With --seizures 0 it is "
        "quiet. EDF files from 1 on are called SUBJECT_session1.edf",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace simulated recordings that exist")
    difficulty = parser.add_argument_group("how hard seizures are to tell from the rest")
    for name, kind, metavar, meaning in (
        ("seizure_amplitude", low_high, "LOW,HIGH", "amplitude of seizures, in standard deviations of the background"),
        ("irregular", low_high, "LOW,HIGH", "amplitude of irregular activity in seizures, in the same unit"),
        ("artefacts", float, "FACTOR", "factor on the number of artefacts"),
        ("line_frequency", frequency, "HZ", "frequency of the hum, or none"),
    ):
        option = f"--difficulty.{name.replace('_', '-')}"
        usual = getattr(Difficulty, name)
        difficulty.add_argument(option, dest=name, type=kind, metavar=metavar, default=usual, help=meaning)
    return parser


def channel_counts(text: str) -> list[int]:
    """A value of --channels.

    Examples
    --------
    >>> channel_counts("8"), channel_counts("4, 8"), channel_counts("[4, 8]")
    ([8], [4, 8], [4, 8])
    """
    try:
        return [int(number) for number in _parts(text)]
    except ValueError:
        raise CommandError(f"--channels must be one or more whole numbers, such as 8 or 4,8, got {text}") from None


def low_high(text: str) -> tuple[float, float]:
    """Two numbers with a comma between them."""
    try:
        low, high = map(float, _parts(text))
    except ValueError:
        raise CommandError(f"LOW,HIGH must be two numbers, such as 0.5,1, got {text}") from None
    return low, high


def frequency(text: str) -> float | None:
    """A number, or none."""
    return None if text.lower() in ("none", "null") else float(text)


def _parts(text: str) -> list[str]:
    return [value for value in text.strip("[]").split(",") if value.strip()]


def write_cohort(
    out: Path, *, kind: str = "swec", part_hours: float = 24.0, overwrite: bool = False, **cohort: Any
) -> list[Path]:
    """Write recordings of `simulate_cohort` (its arguments in `cohort`); return the folders or files."""
    from tqdm import tqdm

    from mvpa_ts.ieeg.recordings.swec import RATES
    from mvpa_ts.ieeg.simulation.writing import check_replaceable, write_edf, write_swec

    recordings = simulate_cohort(**cohort)
    rates = {recording.sfreq for recording in recordings}
    if kind == "swec" and (others := sorted(rates - {*RATES})):
        raise ValueError(
            f"sfreq must be {' or '.join(f'{rate:g}' for rate in RATES)} Hz in files of the SWEC layout, got "
            f"{others[0]:g}: choose one of them, or --format edf"
        )
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file: name a folder to write to")
    session = f"_session{cohort['session']}" if cohort.get("session") else ""
    targets = [out / (f"{r.subject}" if kind == "swec" else f"{r.subject}{session}.edf") for r in recordings]
    # Before the first is written, so that a refusal leaves nothing half done.
    if not overwrite and (existing := [target for target in targets if target.exists()]):
        raise FileExistsError(f"{existing[0]} exists already: pass --overwrite to replace it, or write elsewhere")
    if kind == "swec":
        for target in targets:
            check_replaceable(target)
    out.mkdir(parents=True, exist_ok=True)
    with tqdm(total=round(sum(r.duration for r in recordings)), unit="s", desc="simulate", smoothing=0.05) as bar:
        for recording, target in zip(recordings, targets, strict=True):
            bar.set_postfix_str(str(recording.subject))
            if kind == "swec":
                write_swec(recording, out, part_hours=part_hours, overwrite=overwrite, progress=bar.update)
            else:
                write_edf(recording, target)
                bar.update(round(recording.duration))
    return targets
