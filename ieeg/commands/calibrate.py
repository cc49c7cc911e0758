"""``mvpformer calibrate``: a threshold that keeps a promise of false alarms, from quiet recordings of the patient."""

from __future__ import annotations

from pathlib import Path

from mvpa_ts.ieeg.commands import main as common
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser
from mvpa_ts.ieeg.constants import DEMO
from mvpa_ts.ieeg.recordings.reading import read_recording

DESCRIPTION = """Choose a detector's threshold so that false alarms stay below a rate that you set.

Takes quiet recordings of the patient, without a seizure. T hours without an alarm promise 55/T a day with 90 %
confidence: 6 a day need 10 hours, 1 a day 55. The promise is for hours like these, so give them from all times of the
day. A rate that these hours cannot promise is an error, which says what they can.

Example: mvpformer calibrate night1.edf day1.edf --model runs/patient/model --per-day 6 -o calibration.json
         mvpformer detect new.edf --model runs/patient/model --calibration calibration.json -o results
"""


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = command_line().parse_args(common.with_baseline_files(arguments))
    common.check_output_folder(Path(options.output).parent)
    from mvpa_ts.ieeg.detection.calibration import calibrate, load_calibration

    if Path(options.output).exists():
        try:
            load_calibration(options.output)
        except (ValueError, OSError):  # a recording, say, or a folder
            raise CommandError(f"--output {options.output} exists and is no calibration: name another file") from None
    files_of = common.recordings_in(options.recordings)
    files = [file for listed in files_of.values() for file in listed]
    common.check_model(options.model, baselines=True)
    settings = options.preprocessing, options.channels
    detector = common.load_detector(options.model, *settings, rules=options.rules, device=options.device)
    if detector.classes:
        raise CommandError(f"{options.model} tells {', '.join(detector.classes)} apart: it has no alarms")
    recordings = (read_recording(file, **common.reading_options(options)) for file in files)
    calibration = calibrate(detector, recordings, options.per_day, confidence=options.confidence)
    calibration.save(options.output)
    print(f"{calibration}; see {options.output}")
    common.refuse_unread(files_of)


def command_line() -> CommandParser:
    """The command's arguments."""
    parser = CommandParser("calibrate", DESCRIPTION)
    parser.add_argument("recordings", nargs="+", metavar="recording", help="quiet files, or folders of them")
    parser.add_argument("--per-day", type=float, required=True, help="false alarms a day, at most")
    parser.add_argument("--confidence", type=float, default=0.9, help="probability that the promise holds")
    parser.add_argument("-o", "--output", required=True, help="file.json for detect --calibration")
    parser.add_argument("--model", default=DEMO, help="as for detect, a baseline too")
    parser.add_argument("--rules", choices=("szcore", "paper", "none"), default="szcore", help="as for detect")
    parser.add_argument("--channels", default="auto", help="auto (up to 32), all, or names: A1,A2,B3")
    parser.add_argument("--preprocessing", type=common.preprocessing_changes, help="as for detect")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, …")
    common.add_reading_options(parser)
    return parser
