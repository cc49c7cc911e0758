"""The Lightning command line that pretraining and finetuning share: YAML files, resumption, quiet output."""

from __future__ import annotations

import difflib
import json
import logging
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mvpa_ts.ieeg.commands.main import CommandError, suggestions

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from mvpa_ts.ieeg.training.data_module import RecordingDataModule
    from mvpa_ts.ieeg.training.module import TrainingModule
    from mvpa_ts.ieeg.training.run_folder import TrainingFiles

USAGE = "--config NAME_OR_FILE [--output DIR] [--ckpt_path last] [--KEY VALUE ...]"
SUBCOMMANDS = {
    "fit": f"fit {USAGE}",
    "validate": f"validate {USAGE.replace('[--ckpt_path last]', '--ckpt_path last')}",
}
"""Name of a subcommand and its usage."""
_LISTS = ("--data.recordings", "--data.validation_recordings")


def run_training(
    arguments: Sequence[str],
    module: type[TrainingModule],
    data: type[RecordingDataModule],
    *,
    output: str,
    context_from: str | tuple[str, ...],
    context: Callable[..., int],
    next_command: str,
    train_others: Callable[[Any, Callable[[Sequence[str]], object]], None] | None = None,
) -> None:
    """Train or validate as the command line and YAML files say, and say where the model is and what can follow.

    Parameters
    ----------
    arguments : sequence of str
        Of the command, after `with_named_configs`; without a subcommand they are those of "fit".
    module, data : type
        What is trained, and on what.
    output : str
        Default of ``--output``.
    context_from, context
        Keys that decide the segments of a window, and how.
    next_command : str
        What to do with the model, whose folder stands for ``{model}``.
    train_others : callable, optional
        With it there is an option ``--members``, the number of networks. It is called after the first is trained, with
        the LightningCLI of that run and a function that runs the same command again with some arguments more.
    """
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    named = without_simulation(as_lists(arguments))
    if named[0] not in SUBCOMMANDS:
        named = ["fit", *named]

    def run(more: Sequence[str] = ()) -> Any:
        return _run([*named, *more], module, data, output, context_from, context, members=train_others is not None)

    with _quiet():
        try:
            cli = run()
            trained = cli.subcommand == "fit"
            if trained and train_others is not None:
                train_others(cli, run)
        except MisconfigurationException as error:
            raise CommandError(str(error)) from error
    model = cli.files.folder / "model"
    if trained and cli.trainer.is_global_zero and model.is_dir():
        print(f"the model is in {model}; next: {next_command.format(model=model)}")


def _run(
    arguments: list[str],
    module: type[TrainingModule],
    data: type[RecordingDataModule],
    output: str,
    context_from: str | tuple[str, ...],
    context: Callable[..., int],
    *,
    members: bool,
) -> Any:
    """Run the command once; return its LightningCLI, whose `files` is the folder of the run."""
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
    from lightning.pytorch.strategies import FSDPStrategy

    from mvpa_ts.blocks import ParallelBlock
    from mvpa_ts.ieeg.training.loggers import writing_errors_once
    from mvpa_ts.ieeg.training.run_folder import TrainingFiles

    parsers: list[LightningArgumentParser] = []

    class TrainingParser(LightningArgumentParser):
        """Keys are written out, and a wrong one gets a suggestion."""

        def __init__(self, *positional: Any, **options: Any) -> None:
            super().__init__(*positional, allow_abbrev=False, **options)
            parsers.append(self)

        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            options = [option for parser in parsers for option in parser._option_string_actions]
            # Of a function that computes one key from others, its name and arguments say nothing to the user.
            message = re.sub(r"Call to compute_fn of link .* failed: ", "", message, flags=re.DOTALL)
            super().error("; ".join([message, *suggestions(arguments, options)]), ex)
            raise AssertionError("error ends the process")

    class TrainingCLI(LightningCLI):
        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {
                "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule", "weights_only"},
                "validate": {"model", "dataloaders", "datamodule", "weights_only"},
            }

        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_argument("--output", default=output, help="folder for everything that is written")
            parser.add_argument("--checkpoint_every", type=int, default=500, help="steps from checkpoint to checkpoint")
            if members:
                parser.add_argument("--members", type=int, default=1, help="networks, trained one after the other")
            parser.link_arguments("output", "trainer.default_root_dir")
            parser.link_arguments("seed_everything", "model.seed")
            parser.link_arguments("seed_everything", "data.seed")
            parser.link_arguments(context_from, "data.context", compute_fn=context)

        def _parse_ckpt_path(self) -> None:
            """Lightning would take over the checkpoint's settings; ours says where they differ."""

        def before_instantiate_classes(self) -> None:
            config = self.config[self.subcommand]
            self.files = TrainingFiles(Path(config.output), config.checkpoint_every)
            self.files.check(self.subcommand, config.ckpt_path)

        def instantiate_trainer(self, **kwargs: Any) -> Trainer:
            chosen = self.config_init[self.subcommand].trainer
            progress = chosen.enable_progress_bar is not False
            for key, ours in self.files.trainer_arguments(progress=progress).items():
                theirs = chosen.get(key)
                given = theirs if isinstance(theirs, list) else [theirs] if theirs else []
                kwargs[key] = [*ours, *given] if theirs is not False else False
            if chosen.strategy in ("fsdp", "fsdp_cpu_offload"):
                # By its name alone FSDP would divide the model as one piece, which every GPU would then hold whole.
                kwargs["strategy"] = FSDPStrategy(
                    auto_wrap_policy={ParallelBlock}, cpu_offload=chosen.strategy == "fsdp_cpu_offload"
                )
            return super().instantiate_trainer(**kwargs)

        def _run_subcommand(self, subcommand: str) -> None:
            if members and subcommand == "fit":
                _check_members(self.config[subcommand], self.trainer.world_size)
            with writing_errors_once(), _interruptible(self.files, subcommand):
                super()._run_subcommand(subcommand)

    return TrainingCLI(
        module,
        data,
        seed_everything_default=1,
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,
        save_config_kwargs={"overwrite": True},
        parser_kwargs={
            "prog": f"mvpformer {module.task}",
            **{name: {"usage": f"mvpformer {module.task} {usage}"} for name, usage in SUBCOMMANDS.items()},
        },
        trainer_defaults={"use_distributed_sampler": False},  # the samplers know of the processes
        parser_class=TrainingParser,
        args=arguments,
    )


def _check_members(config: Any, processes: int) -> None:
    from mvpa_ts.ieeg.training.run_folder import LAST

    if config.members < 1:
        raise ValueError(f"members must be at least 1, got {config.members}")
    if config.members > 1 and processes > 1:
        raise ValueError(
            f"members ({config.members}) above 1 need a training in one process, got {processes}: set --members 1, or "
            "--trainer.devices 1"
        )
    if config.members > 1 and config.ckpt_path not in (None, LAST):
        raise ValueError(
            f"with members ({config.members}) above 1 --ckpt_path must be {LAST}, got {config.ckpt_path}: each network "
            "goes on from a checkpoint of its own"
        )


def with_named_configs(arguments: Sequence[str], configs: Mapping[str, str]) -> list[str]:
    """Replace the names of the package's configurations by their files; `configs` has the files by their names.

    A command does this first: a name that does not exist is then said before anything slow is imported.
    """
    result, expected = [], False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if expected:
            result.append(_config_file(argument, configs))
        elif equals and option in ("--config", "-c"):
            result.append(f"{option}={_config_file(value, configs)}")
        else:
            result.append(argument)
        expected = argument in ("--config", "-c")
    return result


def as_lists(arguments: Sequence[str]) -> list[str]:
    """Let recordings be named one after the other, as in a shell, beside the brackets that jsonargparse knows.

    Examples
    --------
    >>> as_lists(["--data.recordings", "monday.edf", "friday.edf", "--output", "run"])
    ['--data.recordings', '["monday.edf", "friday.edf"]', '--output', 'run']
    """
    result: list[str] = []
    rest = [*arguments]
    while rest:
        option, equals, value = (argument := rest.pop(0)).partition("=")
        if option not in _LISTS:
            result.append(argument)
            continue
        names = [value] if equals else []
        while rest and not rest[0].startswith("-"):
            names.append(rest.pop(0))
        whole = len(names) == 1 and (names[0].startswith("[") or names[0] == "null")
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
    if name in configs and not Path(name).is_file():
        return str(resources.files("mvpa_ts.ieeg") / "configs" / configs[name])
    if not Path(name).is_file():
        near = difflib.get_close_matches(name, configs, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise CommandError(f"--config: there is no file {name!r}; the package has {', '.join(configs)}{hint}")
    return name


@contextmanager
def _interruptible(files: TrainingFiles, subcommand: str) -> Iterator[None]:
    """Ctrl-C stays a KeyboardInterrupt, which says where the run goes on.

    Lightning makes it an exit with status 1 without a word, and has the process ignore the next one. A full disk is
    reported by loggers without a file's name.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        reason = f"{error.strerror}, while the run wrote below {files.folder}; {files.resumption()}"
        raise OSError(error.errno, reason) from error
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt(*([files.resumption()] if subcommand == "fit" else [])) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Errors and our own lines stay; Lightning's advice, device lists and tips go."""
    from lightning.fabric.utilities.warnings import PossibleUserWarning

    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning_fabric")]
    loggers += [logging.getLogger(f"lightning.pytorch.{part}") for part in ("utilities.rank_zero", "accelerators.cuda")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)
            # Processes of a distributed run are started with sys.argv, which is the same command line.
            warnings.filterwarnings("ignore", message=".*LightningCLI's args parameter.*")
            warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")  # continuing
            warnings.filterwarnings("ignore", message=".*(isinstance.treespec|LeafSpec|Starting from v1.9.0).*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
