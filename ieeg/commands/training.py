"""Lightning's command line for pretraining and finetuning: YAML files, resumption, quiet output.

It imports Lightning, so commands import it when they run.
"""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from mvpa_ts.blocks import ParallelBlock
from mvpa_ts.files import writing_alone
from mvpa_ts.ieeg.commands.main import CommandError, check_output_folder, quote, refuse_unread, suggestions
from mvpa_ts.ieeg.commands.training_arguments import SUBCOMMANDS, as_lists, without_simulation
from mvpa_ts.ieeg.recordings.recording import Recording
from mvpa_ts.ieeg.training.data_module import RecordingDataModule
from mvpa_ts.ieeg.training.loggers import writing_errors_once
from mvpa_ts.ieeg.training.module import TrainingModule
from mvpa_ts.ieeg.training.run_folder import LAST, TrainingFiles


@dataclass(frozen=True)
class TrainingTask:
    """What pretraining and finetuning differ in."""

    module: type[TrainingModule]
    data: type[RecordingDataModule]
    output: str  # default of --output
    context_from: str | tuple[str, ...]  # keys that decide the segments of a window
    context: Callable[..., int]  # how they decide them
    next_command: str  # what to do with the model, whose folder stands for {model}
    # Called with the settings and the recordings that train and validate, before anything is written or trained.
    before: Callable[[Any, Sequence[Recording], Sequence[Recording]], None] | None = None
    # With it there is an option --members, the number of networks. It is called after the first is trained, with the
    # `TrainingCLI` of that run and a function that runs the same command again with some arguments more.
    train_others: Callable[[TrainingCLI, Callable[[Sequence[str]], object]], None] | None = None


def run_training(arguments: Sequence[str], task: TrainingTask) -> None:
    """Train or validate as the command line and YAML files say, and say where the model is and what can follow.

    The arguments come from `with_named_configs`; without a subcommand they are those of "fit".
    """
    named = without_simulation(as_lists(arguments))
    if named[0] not in SUBCOMMANDS:
        named = ["fit", *named]
    with _quiet():
        try:
            cli = TrainingCLI(task, named)
            trained = cli.subcommand == "fit"
            if trained and task.train_others is not None:
                task.train_others(cli, lambda more: TrainingCLI(task, [*named, *more]))
        except MisconfigurationException as error:
            raise CommandError(str(error)) from error
    model = cli.files.folder / "model"
    if trained and cli.trainer.is_global_zero and model.is_dir():
        print(f"the model is in {model}; next: {task.next_command.format(model=quote(str(model)))}")
        refuse_unread(cli.datamodule.given_paths)


class TrainingParser(LightningArgumentParser):
    """A parser whose keys are written out, and that suggests one for a wrong key of the whole command line.

    All parsers of the command are a `family`, which each joins, as a subcommand's parser knows its own options only.
    jsonargparse makes further ones for single values, without `arguments` and `family`.
    """

    def __init__(
        self,
        *positional: Any,
        arguments: Sequence[str] = (),
        family: list[TrainingParser] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*positional, allow_abbrev=False, **options)
        self._arguments, self._family = arguments, [] if family is None else family
        self._family.append(self)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with status 2, the message, and the option that was meant."""
        # jsonargparse puts the name of the function and its arguments before, which say nothing to the user.
        if ex is not None and isinstance(ex.__cause__, CommandError):
            message = str(ex.__cause__)
        options = [option for parser in self._family for option in parser._option_string_actions]
        super().error("; ".join([message, *suggestions(self._arguments, options)]), ex)
        raise AssertionError("error ends the process")


class TrainingCLI(LightningCLI):
    """One run of a training command, whose arguments have a subcommand; `files` is its folder."""

    def __init__(self, task: TrainingTask, arguments: list[str]) -> None:
        self.task = task
        name = f"mvpformer {task.module.task}"
        super().__init__(
            task.module,
            task.data,
            seed_everything_default=1,
            # The module makes its own, by which weights decay and when the rate falls.
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            # A continued run writes its settings beside those of the run before.
            save_config_kwargs={"overwrite": True},
            parser_kwargs={
                "prog": name,
                **{subcommand: {"usage": f"{name} {usage}"} for subcommand, usage in SUBCOMMANDS.items()},
            },
            # The samplers know of the processes.
            trainer_defaults={"use_distributed_sampler": False},
            parser_class=partial(TrainingParser, arguments=arguments, family=[]),
            args=arguments,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """See `LightningCLI.subcommands`: those of Lightning that make sense here."""
        return {
            "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule", "weights_only"},
            "validate": {"model", "dataloaders", "datamodule", "weights_only"},
        }

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add our options, and links that make one key of several that must agree."""
        parser.add_argument("--output", default=self.task.output, help="folder for everything that is written")
        parser.add_argument("--checkpoint_every", type=int, default=500, help="steps from checkpoint to checkpoint")
        if self.task.train_others is not None:
            parser.add_argument("--members", type=int, default=1, help="networks, trained one after the other")
            parser.add_argument("--linear", type=bool, default=False, help="with a regression that withstands drift")
        parser.link_arguments("output", "trainer.default_root_dir")
        parser.link_arguments("seed_everything", "model.seed")
        parser.link_arguments("seed_everything", "data.seed")
        parser.link_arguments(self.task.context_from, "data.context", compute_fn=self._context)

    def _context(self, *values: Any) -> int:
        try:
            return self.task.context(*values)
        except (CommandError, ValueError, OSError) as error:
            raise CommandError(str(error)) from error

    def _parse_ckpt_path(self) -> None:
        """Lightning would take over the checkpoint's settings; ours says where they differ."""

    def before_instantiate_classes(self) -> None:
        """Refuse what would overwrite a run, before recordings are opened."""
        config = self.config[self.subcommand]
        self.files = TrainingFiles(Path(config.output), config.checkpoint_every)
        self.files.check(self.subcommand, config.ckpt_path)
        check_output_folder(self.files.folder)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the trainer with our callbacks and loggers beside those of the configuration."""
        chosen = self.config_init[self.subcommand].trainer
        progress = chosen.enable_progress_bar is not False
        for key, ours in self.files.trainer_arguments(progress=progress).items():
            theirs = chosen.get(key)
            callbacks = theirs if isinstance(theirs, list) else [theirs] if theirs else []
            kwargs[key] = [*ours, *callbacks] if theirs is not False else False
        if chosen.strategy in ("fsdp", "fsdp_cpu_offload"):
            # By its name alone FSDP would divide the model as one piece, which every GPU would then hold whole.
            offload = chosen.strategy == "fsdp_cpu_offload"
            kwargs["strategy"] = FSDPStrategy(auto_wrap_policy={ParallelBlock}, cpu_offload=offload)
        return super().instantiate_trainer(**kwargs)

    def _run_subcommand(self, subcommand: str) -> None:
        if self.task.train_others is not None and subcommand == "fit":
            _check_members(self.config[subcommand], self.trainer.world_size)
        # Before a logger makes the folder: a mistyped path, or too many channels, would leave an empty one.
        self.trainer.strategy.connect(self.model)
        self.datamodule.trainer = self.trainer
        self.datamodule.setup(subcommand)
        recordings = self.datamodule.open()
        if self.task.before is not None and subcommand == "fit":
            self.task.before(self.config[subcommand], *recordings)
        # Two trainings at once would leave the files of the last one, and both say that they are done.
        first = subcommand == "fit" and self.trainer.is_global_zero
        alone = writing_alone(self.files.folder, wait=False) if first else nullcontext()
        with alone, writing_errors_once(), _interruptible(self.files, subcommand):
            super()._run_subcommand(subcommand)


def _check_members(config: Any, processes: int) -> None:
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


@contextmanager
def _interruptible(files: TrainingFiles, subcommand: str) -> Iterator[None]:
    """Ctrl-C stays a KeyboardInterrupt, which says where the run goes on."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        # Loggers report a full disk without a file's name.
        reason = f"{error.strerror}, while the run wrote below {files.folder}; {files.resumption()}"
        raise OSError(error.errno, reason) from error
    # Lightning makes it an exit with status 1 without a word, and has the process ignore the next one.
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt(*([files.resumption()] if subcommand == "fit" else [])) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Errors and our own lines stay; Lightning's advice, device lists and tips go."""
    # Lightning logs under several names, and which one changes with its version.
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning_fabric")]
    loggers += [logging.getLogger(f"lightning.pytorch.{name}") for name in ("utilities.rank_zero", "accelerators.cuda")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore", category=PossibleUserWarning):
            # Processes of a distributed run are started with sys.argv, which is the same command line.
            warnings.filterwarnings("ignore", message=".*LightningCLI's args parameter.*")
            warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")  # continuing
            warnings.filterwarnings("ignore", message=".*(isinstance.treespec|LeafSpec|Starting from v1.9.0).*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
