"""``mvpformer pretrain``: contrastive pretraining, run and resumed from a YAML file."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvpa_ts.ieeg.command_line import CommandError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

CONFIGS = ("tiny", "s", "m")
SUBCOMMANDS = ("fit", "validate")

USAGE = "--config NAME_OR_FILE [--output DIR] [--ckpt_path last] [--KEY VALUE ...]"
HELP = f"""usage: mvpformer pretrain [fit | validate] {USAGE}

Pretrain MVPFormer to predict the next 5 s segment in embedding space (InfoNCE).

  mvpformer pretrain --config tiny --output runs/tiny                     simulated subjects, minutes on a CPU
  mvpformer pretrain --config s --data.recordings '[/data/swec]' --output runs/s
  mvpformer pretrain --config tiny --output runs/tiny --ckpt_path last    continue after a stop, exactly
  mvpformer pretrain validate --config tiny --output runs/tiny --ckpt_path last

--config is one of {", ".join(CONFIGS)} (they come with the package) or a YAML file; given twice, the second adds to the
first. Any key of it can be given on the command line: --model.learning_rate 3e-4 --trainer.devices 8
--trainer.strategy fsdp. 'mvpformer pretrain fit --help' lists all keys, '--print_config' prints a file to start from.

DIR receives config.yaml, checkpoints/last.ckpt, csv/ and tensorboard/ (losses), similarity.csv and similarity.png, and
at the end model/ (safetensors), which MVPFormer.from_pretrained and the other commands read."""


def main(arguments: list[str]) -> None:
    """Run the command; see `HELP`."""
    if not arguments or arguments in (["-h"], ["--help"]):
        print(HELP)
        return
    named = with_named_configs(arguments)
    if named[0] not in SUBCOMMANDS:
        named = ["fit", *named]
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    with _quiet():
        try:
            _run(named)
        except MisconfigurationException as error:
            raise CommandError(str(error)) from error


def with_named_configs(arguments: Sequence[str]) -> list[str]:
    """Replace the names of the package's configurations by their files."""
    result, expected = [], False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if expected:
            result.append(_config_file(argument))
        elif equals and option in ("--config", "-c"):
            result.append(f"{option}={_config_file(value)}")
        else:
            result.append(argument)
        expected = argument in ("--config", "-c")
    return result


def _config_file(name: str) -> str:
    if name in CONFIGS and not Path(name).is_file():
        return str(resources.files("mvpa_ts.ieeg") / "configs" / f"{name}.yaml")
    if not Path(name).is_file():
        raise CommandError(f"--config: there is no file {name!r}; the package has {', '.join(CONFIGS)}")
    return name


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
            warnings.filterwarnings("ignore", message=".*(isinstance.treespec|LeafSpec|Starting from v1.9.0).*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _run(arguments: list[str]) -> None:
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
    from lightning.pytorch.strategies import FSDPStrategy

    from mvpa_ts.blocks import ParallelBlock
    from mvpa_ts.ieeg.data.module import RecordingDataModule
    from mvpa_ts.ieeg.pretraining import PretrainingModule
    from mvpa_ts.ieeg.training_files import TrainingFiles

    class PretrainingCLI(LightningCLI):
        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {
                "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule", "weights_only"},
                "validate": {"model", "dataloaders", "datamodule", "weights_only"},
            }

        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_argument("--output", default="pretraining_output", help="folder for everything that is written")
            parser.add_argument("--checkpoint_every", type=int, default=500, help="steps from checkpoint to checkpoint")
            parser.link_arguments("output", "trainer.default_root_dir")
            parser.link_arguments("seed_everything", "model.seed")
            parser.link_arguments("seed_everything", "data.seed")
            parser.link_arguments(
                "model.architecture", "data.context", compute_fn=lambda architecture: architecture.context
            )

        def _parse_ckpt_path(self) -> None:
            """Lightning would take over the checkpoint's settings; ours says where they differ."""

        def instantiate_trainer(self, **kwargs: Any) -> Trainer:
            config = self.config[self.subcommand]
            files = TrainingFiles(Path(config.output), config.checkpoint_every)
            if self.subcommand == "fit":
                files.check(resumed=config.ckpt_path is not None)
            chosen = self.config_init[self.subcommand].trainer
            progress = chosen.enable_progress_bar is not False
            for key, ours in files.trainer_arguments(progress=progress).items():
                theirs = chosen.get(key)
                given = theirs if isinstance(theirs, list) else [theirs] if theirs else []
                kwargs[key] = [*ours, *given] if theirs is not False else False
            if chosen.strategy in ("fsdp", "fsdp_cpu_offload"):
                # By its name alone FSDP would divide the model as one piece, which every GPU would then hold whole.
                kwargs["strategy"] = FSDPStrategy(
                    auto_wrap_policy={ParallelBlock}, cpu_offload=chosen.strategy == "fsdp_cpu_offload"
                )
            return super().instantiate_trainer(**kwargs)

    PretrainingCLI(
        PretrainingModule,
        RecordingDataModule,
        seed_everything_default=1,
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,
        save_config_kwargs={"overwrite": True},
        parser_kwargs={name: {"usage": f"mvpformer pretrain {name} {USAGE}"} for name in SUBCOMMANDS},
        trainer_defaults={"use_distributed_sampler": False},  # the samplers know of the processes
        args=arguments,
    )
