"""``mvpformer convert``: the authors' released checkpoints as a model folder."""

from __future__ import annotations

from pathlib import Path

from mvpa_ts.files import read_config
from mvpa_ts.ieeg.commands.main import CommandError, CommandParser, check_output_folder


def main(arguments: list[str]) -> None:
    """Convert and say what became of every tensor."""
    parser = CommandParser(
        "convert",
        "Turn the authors' released MVPFormer weights into a folder that every command here reads.\n"
        "Nothing is guessed: a missing, unexpected or misshapen tensor ends the command with its name.",
    )
    parser.add_argument("base", type=Path, help="pretrained weights (.ckpt, .pt or .safetensors)")
    parser.add_argument("--head", type=Path, help="finetuned classifier with its LoRA adapters, which are merged")
    parser.add_argument("--size", default="s", help="s, m, or the config.json of another size")
    parser.add_argument(
        "--context",
        type=int,
        help="segments of a window: the paper has 100 (default), the released configuration files have 25",
    )
    parser.add_argument("--lora-alpha", type=float, default=16.0, help="scale of the adapters")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write")
    options = parser.parse_args(arguments)
    check_output_folder(options.output)

    from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
    from mvpa_ts.ieeg.model.pretrained import UNFINISHED
    from mvpa_ts.ieeg.model.released import convert_released
    from mvpa_ts.ieeg.model.seen_subjects import TRAINING_NAME

    size = options.size
    # A path with a typing error is not taken for a size.
    if size not in ("s", "m") and not Path(size).is_file():
        raise CommandError(f"--size must be s, m or the path of a config.json, got {size}: there is no such file")
    config = size if size in ("s", "m") else MVPFormerConfig.from_dict(read_config(Path(size)))
    model, conversion = convert_released(
        options.base, options.head, config, context=options.context, lora_alpha=options.lora_alpha, progress=True
    )
    for name in (TRAINING_NAME, UNFINISHED):  # of another model that was there
        (options.output / name).unlink(missing_ok=True)
    model.save_pretrained(options.output)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{conversion}\n{parameters:,} parameters written to {options.output}")
