"""Command lines of pretrain and finetune, made ready for Lightning, which is not imported for it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from mvpa_ts.ieeg.commands.main import CommandError

USAGE = "--config NAME_OR_FILE [--output DIR] [--ckpt_path last] [--KEY VALUE ...]"
# Name of a subcommand and its usage.
SUBCOMMANDS = {
    "fit": f"fit {USAGE}",
    "validate": f"validate {USAGE.replace('[--ckpt_path last]', '--ckpt_path last')}",
}


def with_named_configs(arguments: Sequence[str], configs: Mapping[str, str]) -> list[str]:
    """Replace the names of the package's configurations by their files; `configs` has the files by their names.

    A command does this first: a name that does not exist is then said before anything slow is imported.
    """
    result: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if result and result[-1] in ("--config", "-c"):
            argument = _config_file(argument, configs)
        elif equals and option in ("--config", "-c"):
            argument = f"{option}={_config_file(value, configs)}"
        result.append(argument)
    return result


def as_lists(arguments: Sequence[str]) -> list[str]:
    """Let recordings be named one after the other, as in a shell, beside the brackets that jsonargparse knows.

    Examples
    --------
    >>> as_lists(["--data.recordings", "monday.edf", "friday.edf", "--output", "run"])
    ['--data.recordings', '["monday.edf", "friday.edf"]', '--output', 'run']
    >>> as_lists(["--data.recordings", "[1].edf"])
    ['--data.recordings', '["[1].edf"]']
    """
    result: list[str] = []
    remaining = [*arguments]
    while remaining:
        option, equals, value = (argument := remaining.pop(0)).partition("=")
        if option not in ("--data.recordings", "--data.validation_recordings"):
            result.append(argument)
            continue
        names = [value] if equals else []
        while remaining and not remaining[0].startswith("-"):
            names.append(remaining.pop(0))
        # One text in brackets is jsonargparse's own form of a list.
        whole = len(names) == 1 and (names[0] == "null" or names[0].strip()[:1] + names[0].strip()[-1:] == "[]")
        result += [option, names[0] if whole else json.dumps(names)] if names else [option]
    return result


def without_simulation(arguments: Sequence[str]) -> list[str]:
    """Let recordings of the command line take the place of the simulated subjects of a configuration.

    Validation recordings take the place of its validation subjects, and validation subjects that of its recordings.

    Examples
    --------
    >>> without_simulation(["--data.recordings", "[night.edf]"])
    ['--data.recordings', '[night.edf]', '--data.simulation=null']
    >>> without_simulation(["--data.validation_subjects", "[S1]"])
    ['--data.validation_subjects', '[S1]', '--data.validation_recordings=null']
    """
    options = {argument.partition("=")[0] for argument in arguments}
    replaced = []
    subjects, recordings = ("--data.validation_subjects" in options, "--data.validation_recordings" in options)
    if "--data.recordings" in options and not any(option.startswith("--data.simulation") for option in options):
        replaced.append("--data.simulation=null")
        if recordings and not subjects:
            replaced.append("--data.validation_subjects=[]")
    if subjects and not recordings:
        replaced.append("--data.validation_recordings=null")
    return [*arguments, *replaced]


def _config_file(name: str, configs: Mapping[str, str]) -> str:
    # A file of the user's wins over a name of the package.
    if name in configs and not Path(name).is_file():
        return str(resources.files("mvpa_ts.ieeg") / "configs" / configs[name])
    if not Path(name).is_file():
        near = difflib.get_close_matches(name, configs, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise CommandError(f"--config: there is no file {name!r}; the package has {', '.join(configs)}{hint}")
    return name
