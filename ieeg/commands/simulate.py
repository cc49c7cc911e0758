"""``mvpformer simulate``: recordings with seizures that are made up, for trying every other command."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from mvpa_ts.ieeg.commands.main import suggestions


def main(arguments: list[str]) -> None:
    """Write recordings of made-up subjects as SWEC folders or EDF files."""
    from jsonargparse import ArgumentParser

    from mvpa_ts.ieeg.simulation.simulate import Difficulty

    class SimulateParser(ArgumentParser):
        """Options are written out, and a wrong one gets a suggestion."""

        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            super().error("; ".join([message, *suggestions(arguments, self._option_string_actions)]), ex)
            raise AssertionError("error ends the process")

    parser = SimulateParser(
        prog="mvpformer simulate",
        allow_abbrev=False,
        description="Write intracranial recordings of made-up subjects: seizures of a neural-mass model (Epileptor) in "
        "pink noise with line noise, artefacts and rhythmic bursts. The same arguments give the same files.",
    )
    parser.add_argument("out", type=Path, help="folder to write to; made if need be")
    parser.add_argument("--subjects", type=int, default=4, help="number of subjects, one recording each")
    parser.add_argument(
        "--first_subject", type=int, default=101, help="number of the first, S101; training simulates from S01 on"
    )
    parser.add_argument("--hours", type=float, default=1.0, help="length of each recording")
    parser.add_argument("--channels", type=int | list[int], default=8, help="one number, or several taken in turn")
    parser.add_argument("--seizures", type=int | None, default=None, help="in each recording; one an hour by default")
    parser.add_argument("--sfreq", type=float, default=512.0, help="samples per second; SWEC files have 512 or 1024")
    parser.add_argument("--format", choices=("swec", "edf"), default="swec", help="folders of the SWEC layout, or EDF+")
    parser.add_argument("--part_hours", type=float, default=24.0, help="length of a part of a SWEC recording")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other subjects")
    parser.add_argument("--overwrite", action="store_true", help="replace simulated recordings that exist")
    parser.add_class_arguments(Difficulty, "difficulty", help="how hard seizures are to tell from the rest")
    settings = parser.parse_args(arguments)
    chosen: dict[str, Any] = dict(settings.difficulty)
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}
    written = write_cohort(
        settings.out,
        kind=settings.format,
        part_hours=settings.part_hours,
        overwrite=settings.overwrite,
        num_subjects=settings.subjects,
        first_subject=settings.first_subject,
        num_channels=settings.channels,
        seed=settings.seed,
        duration=settings.hours * 3600,
        sfreq=settings.sfreq,
        num_seizures=settings.seizures,
        difficulty=Difficulty(**chosen),
    )
    count = f"{len(written)} recording{'' if len(written) == 1 else 's'}"
    print(f"{count} in {settings.out}; next: mvpformer detect {settings.out} -o results")


def write_cohort(
    out: Path, *, kind: str = "swec", part_hours: float = 24.0, overwrite: bool = False, **cohort: Any
) -> list[Path]:
    """Write recordings of `simulate_cohort` (its arguments in `cohort`); return the folders or files.

    Raises
    ------
    ValueError
        A size or a rate cannot be.
    FileExistsError
        A recording exists and `overwrite` is off, or its folder holds files that are no part of it. Nothing is written
        or removed then.
    """
    from tqdm import tqdm

    from mvpa_ts.ieeg.recordings.swec import RATES
    from mvpa_ts.ieeg.simulation.simulate import simulate_cohort
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
    targets = [out / (f"{r.subject}" if kind == "swec" else f"{r.subject}.edf") for r in recordings]
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
