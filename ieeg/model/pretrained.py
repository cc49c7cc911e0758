"""Where a pretrained model lies: a folder of this machine, or a repository of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from mvpa_ts.checks import warn
from mvpa_ts.files import read_config, write_text
from mvpa_ts.ieeg.constants import CLASSES, DEMO, DEMO_BASE, HUB_PREFIX, SAMPLING_RATE, SEGMENT_SECONDS
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.weights import CONFIG_NAME

# Field of config.json in the folder of a detector of several networks: how many there are.
NETWORKS = "networks"
# Field of config.json in the folder of a detector that has a linear part beside its networks; one network lacks it.
LINEAR = "linear"
UNFINISHED = "unfinished.txt"
"""In a model's folder while ``mvpformer finetune`` still adds to it."""
# How long the Hugging Face hub may take to answer whether it has a model.
HUB_SECONDS = 5.0

_CARD_MARK = "<!-- Written by save_pretrained, which replaces this file as long as this line is in it. -->"


def write_card(config: MVPFormerConfig, weights: int, folder: str | Path) -> None:
    """Write the model card README.md of a model with so many weights, unless the folder has a card of somebody's own.

    Examples
    --------
    >>> import tempfile
    >>> from mvpa_ts.ieeg import mvpformer_tiny
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_card(mvpformer_tiny(), 278_642, folder)
    ...     (Path(folder) / "README.md").read_text().splitlines()[8]
    '# MVPFormer, 278,642 weights'
    """
    path = Path(folder) / "README.md"
    # A card that somebody wrote by hand says what no program can know, so it is never replaced.
    if path.exists() and _CARD_MARK not in path.read_text(encoding="utf-8", errors="replace"):
        return
    heads = {"features of each segment and channel": True, "the next segment's embedding": config.prediction_head}
    heads["probabilities of classes, last segment"] = config.num_classes > 0
    detect = f'\n    mvpformer detect patient.edf --model "{HUB_PREFIX}OWNER/NAME" -o results\n'
    words = {
        "mark": _CARD_MARK,
        "weights": weights,
        "kind": "A seizure detector" if config.num_classes == 2 else "A foundation model",
        "rate": SAMPLING_RATE,
        "seconds": SEGMENT_SECONDS,
        "attention": "MVPA" if config.attention == "mvpa" else "ordinary, rotary positions (MV-Llama)",
        "amplitude": "log power of the wavelet bands" if config.amplitude == "bands" else "none",
        "outputs": "; ".join(name for name, present in heads.items() if present),
        "detect": detect if config.num_classes == 2 else "",
    }
    template = resources.files("mvpa_ts.ieeg.model").joinpath("model_card.md").read_text(encoding="utf-8")
    write_text(path, template.format_map(config.to_dict() | words))


def pretrained_config(
    pretrained_model_name_or_path: str | Path, changes: Mapping[str, Any] | None = None, **options: Any
) -> MVPFormerConfig:
    """The configuration that `MVPFormer.from_pretrained` would use, without the weights; its errors are the same."""
    fields = read_config(pretrained_file(pretrained_model_name_or_path, CONFIG_NAME, **options))
    # One of several would be a weaker detector, so it is not taken in silence.
    if NETWORKS in fields:
        raise ValueError(
            f"{pretrained_model_name_or_path} holds {fields[NETWORKS]} networks of one detector, and one network is "
            "needed here: give the folder to Detector, or take one of mvpa_ts.ieeg.detection.networks.load_networks"
        )
    fields.pop(LINEAR, None)
    return MVPFormerConfig.from_dict(fields | dict(changes or {}))


def folder_of(name: str | Path) -> Path:
    """The folder of a model by its name: that of the package for "demo" and "demo-base", else the path itself.

    Examples
    --------
    >>> folder_of("runs/patient/model")
    PosixPath('runs/patient/model')
    >>> sorted(file.name for file in folder_of("demo").iterdir())
    ['README.md', 'config.json', 'model.safetensors', 'training.json']
    """
    return Path(__file__).parent / "weights" / name if str(name) in (DEMO, DEMO_BASE) else Path(name)


def warn_of_unfinished(folder: Path) -> None:
    """Warn of the folder of a detector that lacks what was still to come when its finetuning ended."""
    if (folder / UNFINISHED).is_file():
        warn(
            f"{folder} lacks networks or its regression, because the finetuning was ended before they were there: "
            "start the same command again, with --ckpt_path last"
        )


def pretrained_file(folder_or_repository: str | Path, name: str, **options: Any) -> Path:
    """The file `name` of a model, downloaded where the model is no folder; `options` are those of `hf_hub_download`."""
    # With the prefix the hub is meant, even if a folder of the same name lies here.
    if str(folder_or_repository).startswith(HUB_PREFIX):
        return _from_hub(str(folder_or_repository).removeprefix(HUB_PREFIX), name, **options)
    folder = folder_of(folder_or_repository)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file, a model is a folder with {name}{_nearby_model(folder, name)}")
    if not folder.is_dir():
        return _from_hub(folder_or_repository, name, **options)
    if not (folder / name).is_file():
        raise FileNotFoundError(f"{name} is not in {folder}{_nearby_model(folder, name)}")
    return folder / name


def _nearby_model(path: Path, name: str) -> str:
    """The model near a path in the folder of a run, which holds model/, adapter/ and checkpoints/last.ckpt."""
    # Users name the run's folder or its checkpoint where the model's folder is meant.
    near = (path / "model", path.parent, path.parent / "model", path.parent.parent / "model")
    classes = path / f"{CLASSES}.json"
    meant = classes if classes.is_file() else next((folder for folder in near if (folder / name).is_file()), None)
    return "" if meant is None else f": did you mean {meant}?"


def _from_hub(repository: str | Path, name: str, **options: Any) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    place = {"repo_id": str(repository), "filename": name, "revision": options.get("revision")}
    try:
        # A file that was downloaded before needs no connection.
        cached = try_to_load_from_cache(**place, cache_dir=options.get("cache_dir"))
        if cached is None and not options.get("local_files_only"):
            _ask_hub(place, options.get("token"))
        return Path(hf_hub_download(repo_id=str(repository), filename=name, **options))
    except (EntryNotFoundError, HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise FileNotFoundError(
            f"{repository} is neither a folder nor a model on the Hugging Face hub with {name} ({error})"
        ) from error


@contextmanager
def hub_answers(fact: str, advice: str, kind: type[OSError] = OSError) -> Iterator[None]:
    """Make an OSError in plain words, of `fact`, the reason and `advice`, where the Hugging Face hub is not reached."""
    try:
        yield
    except Exception as error:  # of whichever HTTP library this version of huggingface_hub uses
        # A name is in the library's own module; all else is not about the connection.
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "requests", "urllib3"):
            raise
        raise kind(f"{fact} ({type(error).__name__}: {error}){advice}") from error


def _ask_hub(place: dict[str, Any], token: str | bool | None) -> None:
    # Once: ``hf_hub_download(etag_timeout=1)`` asks six times, which takes 24 s where the connection is refused and,
    # with a read timeout that it does not pass on, six minutes where the hub is silent (version 2.4.0).
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    fact = f"there is no folder {place['repo_id']}, and the Hugging Face hub could not be asked for {place['filename']}"
    advice = ": check the path, or for a name on the hub the connection; a model that was downloaded before needs none"
    with hub_answers(f"{fact} of a model of that name", advice, FileNotFoundError):
        get_hf_file_metadata(hf_hub_url(**place), token=token, timeout=HUB_SECONDS)
