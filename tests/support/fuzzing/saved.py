"""What this library writes: models, checkpoints, networks, stores and results of detection."""

from pathlib import Path

import numpy as np
import torch
from support.fuzzing.formats import Format

from mvpa_ts.classification.configuration import ClassificationConfig
from mvpa_ts.classification.fitted import FittedClassifier
from mvpa_ts.classification.training import ClassificationTraining, fit_classifier
from mvpa_ts.forecasting.fitted import FittedForecaster, fit_forecaster
from mvpa_ts.forecasting.network.configuration import ForecastingConfig
from mvpa_ts.forecasting.training import ForecasterTraining
from mvpa_ts.ieeg import Detector, MVPFormer, Recording, Segments, load_released, mvpformer_tiny
from mvpa_ts.ieeg.detection.baselines import ClassRegression, LineLength, Regression, load_baseline
from mvpa_ts.ieeg.detection.calibration import calibrate_scores, load_calibration
from mvpa_ts.ieeg.detection.detection import read_detection
from mvpa_ts.ieeg.detection.rules import EventRules
from mvpa_ts.ieeg.detection.saved import read_run
from mvpa_ts.ieeg.detection.store import ProbabilityStore
from mvpa_ts.ieeg.model.lora import load_finetuned, prepared, save_finetuned, with_head
from mvpa_ts.ieeg.model.seen_subjects import read_training_subjects
from mvpa_ts.ieeg.training.checkpoints import AtomicCheckpointIO
from mvpa_ts.windows import Series

TINY = mvpformer_tiny(dim=16, mlp_dim=24, num_layers=1, context=4, dropout=0.0)


def model(num_classes: int | None = None) -> MVPFormer:
    torch.manual_seed(0)
    changes = {} if num_classes is None else {"num_classes": num_classes}
    return MVPFormer(TINY.__class__(**{**TINY.to_dict(), **changes})).eval()


def signal() -> torch.Tensor:
    return torch.randn(1, 2, 4 * 2560, generator=torch.Generator().manual_seed(0)) * 50


def make_model(folder: Path) -> None:
    model().save_pretrained(folder / "m")
    (folder / "m" / "training.json").write_text('{"subjects_sha256": ["ab12"]}')


def read_model(folder: Path) -> None:
    with torch.inference_mode():
        MVPFormer.from_pretrained(folder / "m")(signal())
    read_training_subjects(folder / "m")


def make_adapter(folder: Path) -> None:
    model().save_pretrained(folder / "base")
    save_finetuned(prepared(with_head(MVPFormer.from_pretrained(folder / "base"))), folder / "m")


def read_adapter(folder: Path) -> None:
    with torch.inference_mode():
        load_finetuned(folder / "m", folder / "base")(signal())


def make_released(folder: Path) -> None:
    from safetensors.torch import save_file

    from tests.ieeg.model.test_released import CONFIG, released_base, released_head

    torch.save(released_base(CONFIG), folder / "base.ckpt")
    save_file({name: x.contiguous() for name, x in released_base(CONFIG).items()}, folder / "base.safetensors")
    torch.save(released_head(CONFIG), folder / "head.ckpt")


def read_released(folder: Path) -> None:
    from tests.ieeg.model.test_released import CONFIG

    load_released(folder / "base.safetensors", config=CONFIG)
    load_released(folder / "base.ckpt", folder / "head.ckpt", CONFIG)


def make_checkpoint(folder: Path) -> None:
    content = {"state_dict": model().state_dict(), "global_step": 3, "loops": {"a": [1, None, "x"]}}
    AtomicCheckpointIO().save_checkpoint(content, folder / "last.ckpt")


def make_forecaster(folder: Path) -> None:
    levels = [0.1, 0.5, 0.9]
    config = ForecastingConfig(
        4, 12, patch_length=4, patch_stride=2, dim=8, num_heads=2, mlp_dim=8, num_outputs=len(levels)
    )
    values = np.sin(np.arange(60)[:, None] / 3 + np.arange(2))
    fit_forecaster([Series(values, None)], config, ForecasterTraining(steps=2), levels=levels).to_files(folder / "f")


def read_forecaster(folder: Path) -> None:
    values = np.sin(np.arange(60)[:, None] / 3 + np.arange(2))
    FittedForecaster.from_files(folder / "f").predict(Series(values, None))


def panel() -> tuple[list[np.ndarray], np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=(2, 20)) for _ in range(12)], np.arange(12) % 2


def make_classifier(folder: Path) -> None:
    series, labels = panel()
    config = ClassificationConfig(
        2, 2, 20, token_channels=4, tokens=16, positions=32, width=8, dim=16, mlp_dim=16, kernel_features=300
    )
    training = ClassificationTraining(steps=2, evaluate_every=1, kernel_copies=1)
    fit_classifier(series, labels, config=config, training=training, seed=4).to_files(folder / "c")


def read_classifier(folder: Path) -> None:
    FittedClassifier.from_files(folder / "c").predict_proba(panel()[0])


def recording() -> Recording:
    x = np.random.default_rng(0).normal(0, 50, (3, 12 * 2560))
    return Recording.from_array(x, 512.0, ["A1", "A2", "A3"], "µV", subject="S1", seizures=[(10.0, 20.0)])


STARTS = [5.0 * i for i in range(12)]


def make_store(folder: Path) -> None:
    with ProbabilityStore(folder / "p.store", {"weights": "1f", "a": [1, 2]}, STARTS) as store:
        store.append([0.25, 0.5, float("nan"), 1.0])


def read_store(folder: Path) -> None:
    with ProbabilityStore(folder / "p.store", {"weights": "1f", "a": [1, 2]}, STARTS) as store:
        values = store.probabilities
        np.testing.assert_array_equal(values, np.array([0.25, 0.5, np.nan, 1.0])[: len(values)])


def make_detection(folder: Path) -> None:
    Detector(model(2), channels="all", threshold=0.3).detect(recording()).save(folder / "d")


def read_saved(folder: Path) -> None:
    from mvpa_ts.ieeg.scoring.results import read_result

    detection = read_detection(folder / "d")
    assert ((detection.probabilities >= 0) | np.isnan(detection.probabilities)).all()
    result = read_result(folder / "d")
    assert 0 <= result.hours_skipped * 3600 <= result.duration + 1


def make_baselines(folder: Path) -> None:
    row = np.linspace(0.1, 1.0, 18).tolist()
    LineLength(12.5).save(folder / "line-length.json")
    Regression(row, row, row, 0.5).save(folder / "regression.json")
    ClassRegression(["awake", "asleep"], row, row, [row, row[::-1]], [0.0, 0.5]).save(folder / "classes.json")


def read_baselines(folder: Path) -> None:
    for file in folder.glob("*.json"):
        for values in load_baseline(file).probabilities(Segments(recording())):
            assert ((values >= 0) & (values <= 1)).all()


def make_calibration(folder: Path) -> None:
    scores = np.random.default_rng(0).uniform(0, 0.5, 7200)
    calibrate_scores([(scores, 5.0 * np.arange(7200))], per_day=6.0, rules=EventRules()).save(folder / "c.json")


def read_calibration(folder: Path) -> None:
    calibration = load_calibration(folder / "c.json")
    str(calibration)
    calibration.warn_of_another(recording())


FORMATS = (
    Format("baselines", make_baselines, read_baselines, ("*.json",)),
    Format("calibration", make_calibration, read_calibration, ("c.json",)),
    Format("model folder", make_model, read_model, ("m/*.json", "m/*.safetensors")),
    Format("adapter folder", make_adapter, read_adapter, ("m/**/*",)),
    Format("released checkpoints", make_released, read_released, ("*.ckpt", "*.safetensors")),
    Format(".ckpt", make_checkpoint, lambda f: AtomicCheckpointIO().load_checkpoint(f / "last.ckpt"), ("last.ckpt",)),
    Format("forecaster folder", make_forecaster, read_forecaster, ("f/*",)),
    Format("classifier folder", make_classifier, read_classifier, ("c/*",)),
    Format("store", make_store, read_store, ("p.store",)),
    Format("detection results", make_detection, read_saved, ("d/*.tsv", "d/run.json")),
    Format("run.json", make_detection, lambda folder: read_run(folder / "d"), ("d/run.json",)),
)
