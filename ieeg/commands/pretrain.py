"""``mvpformer pretrain``: contrastive pretraining, run and resumed from a YAML file."""

from __future__ import annotations

from mvpa_ts.ieeg.commands.training_arguments import USAGE, with_named_configs

CONFIGS = {"tiny": "tiny.yaml", "s": "s.yaml", "m": "m.yaml", "ours": "ours.yaml"}
HELP = f"""usage: mvpformer pretrain [fit | validate] {USAGE}

Pretrain MVPFormer to predict the next 5 s segment in embedding space (InfoNCE).

  mvpformer pretrain --config tiny --output runs/tiny                     simulated subjects, minutes on a CPU
  mvpformer pretrain --config s --data.recordings /data/swec/ID0? /data/swec/ID1[0-8] --output runs/s
  mvpformer pretrain --config tiny --output runs/tiny --ckpt_path last    continue after a stop, exactly
  mvpformer pretrain validate --config tiny --output runs/tiny --ckpt_path last

--config is one of {", ".join(CONFIGS)} (they come with the package) or a YAML file; a second one adds to the first.
s and m train as the paper states it, but clipping, batch size and decay of codebooks are ours; '--config s --config
ours' trains as we would. Any key can be given: --model.learning_rate 3e-4 --trainer.devices 8 --trainer.strategy fsdp.
'mvpformer pretrain fit --help' lists all keys, '--print_config' prints a file to start from.

DIR receives checkpoints/last.ckpt; csv/ and tensorboard/, each with a folder version_0, version_1, … for every start
(losses; in csv/ the settings too, config.yaml); similarity.csv and similarity.png; and at the end model/ (safetensors),
which MVPFormer.from_pretrained and the other commands read."""


def main(arguments: list[str]) -> None:
    """Run the command; see `HELP`."""
    if not arguments or arguments in (["-h"], ["--help"]):
        print(HELP)
        return
    arguments = with_named_configs(arguments, CONFIGS)
    from mvpa_ts.ieeg.commands.training import TrainingTask, run_training
    from mvpa_ts.ieeg.training.data_module import RecordingDataModule
    from mvpa_ts.ieeg.training.pretraining import PretrainingModule

    task = TrainingTask(
        PretrainingModule,
        RecordingDataModule,
        output="pretraining_output",
        context_from="model.architecture",
        context=lambda architecture: architecture.context,
        next_command="mvpformer finetune --config tiny --model.base {model} --output runs/seizures",
    )
    run_training(arguments, task)
