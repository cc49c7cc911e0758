"""The Lightning module: its loss, its optimizer, and runs that stop and go on."""

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from support.made_up_recordings import quiet_trainer, recording

from mvpa_ts.ieeg import MVPFormer, Recording, mvpformer_tiny
from mvpa_ts.ieeg.random_streams import stream_seed
from mvpa_ts.ieeg.simulation.writing import write_edf
from mvpa_ts.ieeg.training.checkpoints import AtomicCheckpointIO
from mvpa_ts.ieeg.training.contrastive import Spans, info_nce
from mvpa_ts.ieeg.training.data_module import RecordingDataModule
from mvpa_ts.ieeg.training.module import learning_rate_scale
from mvpa_ts.ieeg.training.pretraining import PretrainingModule, _recordings, load_pretrained, measure_similarity

CONTEXT = 4


def architecture(**changes: Any):
    return mvpformer_tiny(**{"dim": 16, "mlp_dim": 24, "num_layers": 1, "context": CONTEXT, **changes})


def people(*numbers: int) -> list[Recording]:
    return [recording(f"S{n}", seed=n, channels=2 + n % 2) for n in numbers]


def data(windows: int = 2, **changes: Any) -> RecordingDataModule:
    arguments: dict[str, Any] = {
        "recordings": people(0, 1, 2, 3),
        "validation_subjects": ["S3"],
        "context": CONTEXT,
        "batch_size": 4,
        "in_memory": True,
        "seed": 3,
    }
    return RecordingDataModule(windows=windows, **(arguments | changes))


class Losses(pl.Callback):
    """Every loss, exactly, by the number of the batch."""

    def __init__(self) -> None:
        self.by_batch: dict[int, float] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs["loss"].item() * trainer.accumulate_grad_batches
        self.by_batch[module.batches_done] = loss


def trainer(folder: Path, steps: int, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    settings: dict[str, Any] = {"enable_checkpointing": False, "devices": 1, "gradient_clip_val": 1.0}
    settings |= {"default_root_dir": folder, "max_steps": steps, "num_sanity_val_steps": 0} | changes
    return quiet_trainer(callbacks=[*callbacks], plugins=[AtomicCheckpointIO()], **settings)


def module(**changes: Any) -> PretrainingModule:
    settings = {"architecture": architecture(), "learning_rate": 1e-3, "warmup_steps": 3, "seed": 5}
    return PretrainingModule(**(settings | changes))


def batch(windows: int = 2) -> dict[str, Any]:
    torch.manual_seed(0)
    S = CONTEXT + windows
    return {
        "signal": torch.randn(3, 2, S * 2560),
        "token_mask": torch.rand(3, S, 2) < 0.8,
        "channel_mask": torch.tensor([[1, 1], [1, 0], [1, 1]], dtype=torch.bool),
        "segment_mask": torch.tensor([[1] * S, [1] * S, [0] + [1] * (S - 1)], dtype=torch.bool),
        "ictal": torch.zeros(3, S, dtype=torch.bool),
        "subject": ["a", "b", "b"],
        "recording": ["1", "1", "1"],
        "start": torch.tensor([0.0, 0.0, 100.0]),
    }


@pytest.mark.parametrize("windows", [1, 3])
def test_loss_is_that_of_windows_encoded_one_by_one(windows):
    # Without amplitude: its running level knows the span's segments before a window, and not what is masked.
    made = batch(windows)
    one = PretrainingModule(architecture(amplitude="none"), learning_rate=1e-3, warmup_steps=3, seed=5).eval()
    loss, accuracy, _ = one.loss_and_accuracy(made, torch.Generator().manual_seed(1))
    real = made["token_mask"] & made["channel_mask"][:, None] & made["segment_mask"][..., None]
    samples = 2560
    predictions = []
    for w in range(windows):
        part = slice(w * samples, (w + CONTEXT) * samples)
        predictions.append(one.model.predict_next(made["signal"][..., part], token_mask=real[:, w : w + CONTEXT]))
    embeddings = one.model.encode(made["signal"])
    expected = info_nce(
        torch.stack(predictions, dim=1),
        embeddings,
        real=real,
        spans=Spans.of(["a/1", "b/1", "b/1"], made["start"], CONTEXT + windows),
        generator=torch.Generator().manual_seed(1),
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert 0.0 <= accuracy.item() <= 1.0


def test_masked_signal_does_not_matter():
    made = batch()
    one = module().eval()
    clean = one.loss_and_accuracy(made, torch.Generator().manual_seed(1))[0]
    real = made["token_mask"] & made["channel_mask"][:, None] & made["segment_mask"][..., None]
    spoilt = made["signal"].view(3, 2, -1, 2560).masked_fill(~real.transpose(1, 2)[..., None], math.nan)
    again = one.loss_and_accuracy(made | {"signal": spoilt.flatten(2)}, torch.Generator().manual_seed(1))[0]
    assert again.item() == pytest.approx(clean.item(), rel=1e-6)


def test_optimizer_decays_matrices_only(tmp_path):
    one = module()
    trainer(tmp_path, 1, limit_val_batches=0).fit(one, data())
    optimizer = one.optimizers().optimizer
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["fused"]
    decayed, plain = (group["params"] for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert {p.ndim for p in decayed} == {2}
    names = {id(p): name for name, p in one.named_parameters()}
    assert {names[id(p)].rpartition(".")[2] for p in plain} == {
        "weight",  # of norms
        "bias",  # of the amplitude's map
        "time_codebook",
        "channel_codebook",
        "content_bias",
        "time_bias",
        "channel_bias",
    }
    assert len(decayed) + len(plain) == len(names)


def test_clipping_of_a_divided_model_is_the_root_modules(monkeypatch):
    class Root:
        clipped = 0.0

        def clip_grad_norm_(self, norm: float) -> None:
            self.clipped = norm

    class Strategy:
        model = Root()

    class Owner:
        strategy = Strategy()

    one = module()
    monkeypatch.setattr(PretrainingModule, "trainer", Owner())
    one.configure_gradient_clipping(torch.optim.AdamW(one.parameters()), 1.0, None)
    assert Strategy.model.clipped == 1.0


def test_schedules():
    constant = learning_rate_scale("constant", 4, 0.1, 100)
    assert [constant(step) for step in (0, 3, 4, 99)] == [0.25, 1.0, 1.0, 1.0]
    cosine = learning_rate_scale("cosine", 0, 0.0, 8)
    assert cosine(4) == pytest.approx(0.5)
    assert cosine(8) == pytest.approx(0.0)


def test_training_teaches_the_next_segment(tmp_path):
    one, losses = module(learning_rate=3e-3), Losses()
    trainer(tmp_path, 60, losses, val_check_interval=60).fit(one, data())
    first, last = (sum(losses.by_batch[s] for s in steps) / 5 for steps in (range(1, 6), range(56, 61)))
    assert last < first - 0.4
    overall = one.similarity.overall().set_index("state")
    assert overall.loc["all", "true"] > overall.loc["all", "random"]
    assert set(overall.index) == {"all", "interictal", "boundary", "ictal"}
    assert set(one.similarity.segments["subject"]) == {"S3"}


@pytest.mark.parametrize("context", [4, 5])
def test_every_validation_segment_is_seen_once(tmp_path, context):
    one = PretrainingModule(architecture(context=context))
    trainer(tmp_path, 2, val_check_interval=2).fit(one, data(context=context))
    starts = one.similarity.segments["start"].tolist()
    # Of 40 segments those with two whole minutes ahead of them; the last span is a short one.
    assert sorted(starts) == [5.0 * p for p in range(40 - 24)]


@pytest.mark.parametrize("segments", [54, 55, 58, 83, 84])
def test_validation_does_not_depend_on_the_batch(segments):
    """The last span is as long as the others, holds 25, 28 or 53 segments, or 24 + T again."""
    model = PretrainingModule(architecture(context=30)).model
    recordings = [recording(f"S{n}", seed=n, segments=segments, channels=2 + n) for n in range(3)]
    found = []
    for batch_size in (1, 2, 8):
        made = data(recordings=recordings, validation_subjects=["S1", "S2"], context=30, batch_size=batch_size)
        made.setup()
        frame = measure_similarity(model, made.val_dataloader()).segments.sort_values(["subject", "start"])
        assert frame["start"].tolist() == 2 * [5.0 * p for p in range(segments - 24)]
        found.append(frame[["true", "two_step"]].to_numpy())
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-5)


def test_a_short_span_alone_in_its_batch_is_validated(tmp_path):
    one = PretrainingModule(architecture(context=30))
    recordings = [recording(f"S{n}", seed=n, segments=58) for n in range(2)]
    made = data(recordings=recordings, validation_subjects=["S1"], context=30, batch_size=1)
    with pytest.warns(UserWarning, match="the batch has no other window"):
        (values,) = trainer(tmp_path, 1).validate(one, made, verbose=False)
    assert math.isfinite(values["validation/loss"])
    assert len(one.similarity.segments) == 58 - 24


def test_files_of_one_name_in_folders_by_day_are_all_compared(tmp_path):
    """Two recordings of 60 segments that are both called "ieeg": each has 36 segments with two minutes ahead."""
    rows = ["file\tsubject"]
    for number, (subject, file) in enumerate([("P1", "p1.edf"), ("P2", "day1/ieeg.edf"), ("P2", "day2/ieeg.edf")]):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        write_edf(recording(subject, seed=number, segments=60, channels=2), tmp_path / file)
        rows.append(f"{file}\t{subject}")
    (tmp_path / "who.tsv").write_text("\n".join(rows) + "\n")
    made = data(recordings=[tmp_path], subjects=tmp_path / "who.tsv", validation_subjects=["P2"], context=8)
    made.setup()
    found = measure_similarity(PretrainingModule(architecture(context=8)).model, made.val_dataloader())
    for _, day in found.segments.groupby("recording"):
        assert sorted(day["start"]) == [5.0 * p for p in range(36)]
    assert set(found.segments["recording"]) == {"ieeg", "ieeg (2)"}
    # Nor do they count as one stretch of time for negatives.
    batch = {"subject": ["P2"] * 3, "recording": ["ieeg", "ieeg (2)", "ieeg"]}
    spans = Spans.of(_recordings(batch), torch.zeros(3), 9)
    assert spans.overlap(spans).tolist() == [[True, False, True], [False, True, False], [True, False, True]]


def test_a_recording_that_swec_has_twice_is_one_for_negatives():
    names = ["ID01/ID01", "ID20/ID20", "ID20/ID20_part_1", "ID21/ID21", "S1/ID20", "ID20/ieeg", "ID2/ID20"]
    subject, recording = zip(*(name.split("/") for name in names), strict=True)
    found = _recordings({"subject": subject, "recording": recording})
    assert found == ["ID01/ID01", "ID01/ID01", "ID01/ID01_part_1", "ID02/ID02", "S1/ID20", "ID01/ieeg", "ID2/ID20"]
    spans = Spans.of(found[:3], torch.zeros(3), 9)
    assert spans.overlap(spans).tolist() == [[True, True, False], [True, True, False], [False, False, True]]


def test_similarity_needs_two_minutes_after_each_prediction():
    made = data()
    made.setup()
    with pytest.raises(ValueError, match=r"two minutes, 28 segments, .* got 6: read them by .*segments=28"):
        measure_similarity(module().model, made.train_dataloader())


def run(
    folder: Path, steps: int, checkpoint: Path | None = None, *callbacks: pl.Callback, **changes: Any
) -> tuple[Losses, PretrainingModule]:
    losses, one = Losses(), module(**changes.pop("module", {}))
    changes = {"limit_val_batches": 1, "val_check_interval": 5} | changes
    source = changes.pop("data", None) or data()
    trainer(folder, steps, losses, *callbacks, **changes).fit(one, source, ckpt_path=checkpoint, weights_only=True)
    return losses, one


@pytest.mark.parametrize("accumulate", [1, 2])
def test_resumed_run_is_the_same_run(tmp_path, accumulate):
    from lightning.pytorch.callbacks import ModelCheckpoint

    whole, one = run(tmp_path / "whole", 9, accumulate_grad_batches=accumulate)
    saving = ModelCheckpoint(tmp_path / "kept", filename="{step}", every_n_train_steps=4, save_top_k=-1)
    steady: dict[str, Any] = {"module": {"schedule": "constant"}, "accumulate_grad_batches": accumulate}
    # The first run ends at another step, so that the schedule differs: cosine would tell.
    run(tmp_path / "first", 6, None, saving, enable_checkpointing=True, **steady)
    checkpoint = tmp_path / "kept" / "step=4.ckpt"
    assert checkpoint.is_file()
    constant, _ = run(tmp_path / "constant", 9, **steady)
    # Drawn numbers before the resumption must not matter, nor the number of workers.
    torch.manual_seed(123)
    torch.rand(10)
    resumed, two = run(tmp_path / "resumed", 9, checkpoint, data=data(workers=1, in_memory=False), **steady)
    assert sorted(resumed.by_batch) == list(range(4 * accumulate + 1, 9 * accumulate + 1))
    for number, loss in resumed.by_batch.items():
        assert loss == constant.by_batch[number], number
    assert whole.by_batch[9 * accumulate] != constant.by_batch[9 * accumulate]
    assert two.batches_done == one.batches_done == 9 * accumulate


@pytest.mark.parametrize("workers", [0, 1])
def test_short_epochs_see_the_batches_of_a_long_one(tmp_path, workers):
    alone: dict[str, Any] = {"val_check_interval": None, "limit_val_batches": 0}
    whole, _ = run(tmp_path, 6, **alone)
    short, _ = run(tmp_path, 6, limit_train_batches=2, data=data(workers=workers, in_memory=False), **alone)
    assert short.by_batch == whole.by_batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module": {"learning_rate": 5e-3}}, "other settings .*learning_rate: 0.001 there, 0.005 here"),
        ({"module": {"seed": 6}}, "other settings .*seed: 5 there, 6 here"),
        ({"accumulate_grad_batches": 4}, r"other settings \(trainer.accumulate_grad_batches: 1 there, 4 here\)"),
        ({"gradient_clip_val": 0.001}, r"other settings \(trainer.gradient_clip_val: 1.0 there, 0.001 here\)"),
        ({"precision": "bf16-mixed"}, r"other settings \(trainer.precision: '32-true' there, 'bf16-mixed' here\)"),
        ({"data": data(batch_size=3)}, "other data .*batch_size: 4 there, 3 here"),
        (
            {"data": data(recordings=people(0, 2, 1, 3))},
            "recording 2: 'S1_made_up, 40 segments of 3 channels' there, 'S2_made_up, 40 segments of 2 channels' here",
        ),
        (
            {"data": data(recordings=[*people(0), recording("S1", seed=5, channels=3), *people(2, 3)])},
            r"other data \(samples and seizures of training recording 2: '\w{16}' there, '\w{16}' here\)$",
        ),
        (
            {"data": data(recordings=[one.with_seizures([(50.0, 60.0)]) for one in people(0, 1, 2, 3)])},
            "other data .*samples and seizures of training recording 1: .* validation recording 1: ",
        ),
        ({"data": data(seed=4)}, r"other data \(seed: 3 there, 4 here\)$"),
    ],
)
def test_checkpoint_of_another_run_is_refused(tmp_path, change, message):
    path = tmp_path / "last.ckpt"
    one = trainer(tmp_path, 1, limit_val_batches=0)
    one.fit(module(), data())
    one.save_checkpoint(path)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, 2, path, **change)


def test_a_checkpoint_is_validated_on_other_data(tmp_path):
    one = trainer(tmp_path, 1, limit_val_batches=0)
    one.fit(module(), data())
    one.save_checkpoint(tmp_path / "last.ckpt")
    others = data(recordings=[recording(f"S{n}", seed=n) for n in (7, 8)], validation_subjects=["S8"])
    other = trainer(tmp_path, 1, precision="bf16-mixed", accumulate_grad_batches=2)
    (values,) = other.validate(module(), others, ckpt_path=tmp_path / "last.ckpt", verbose=False)
    assert math.isfinite(values["validation/loss"])


def test_exported_weights_are_those_of_the_checkpoint(tmp_path):
    one = trainer(tmp_path, 2, limit_val_batches=0)
    trained = module()
    one.fit(trained, data())
    one.save_checkpoint(tmp_path / "last.ckpt")
    load_pretrained(tmp_path / "last.ckpt").save_pretrained(tmp_path / "model")
    loaded = MVPFormer.from_pretrained(tmp_path / "model")
    signal = torch.randn(1, 2, CONTEXT * 2560)
    with torch.no_grad():
        assert torch.equal(loaded.predict_next(signal), trained.eval().model.predict_next(signal))


def test_seed_decides_the_weights_and_leaves_the_generator_alone():
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    first, second, other = module(), module(), module(seed=6)
    assert torch.equal(torch.rand(1), expected)
    name = "model.encoder.projection.weight"
    assert torch.equal(first.state_dict()[name], second.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


def test_streams_differ():
    seeds = {stream_seed(1, "negatives", batch, rank) for batch in range(50) for rank in range(4)}
    assert len(seeds | {stream_seed(2, "negatives", 0, 0), stream_seed(1, "dropout", 0, 0)}) == 202


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "linear"}, "schedule must be"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0"),
        ({"final_rate": 2.0}, "final_rate must be in"),
        ({"architecture": architecture(prediction_head=False)}, "prediction_head=True"),
    ],
)
def test_errors(change, message):
    with pytest.raises(ValueError, match=message):
        module(**change)


def test_short_spans_are_refused():
    with pytest.raises(ValueError, match=r"more segments than the context \(4\), got 4"):
        module().loss_and_accuracy(batch(0), torch.Generator())


def test_bf16_and_checkpointing_run(tmp_path):
    losses, _ = run(tmp_path, 3, precision="bf16-mixed", module={"gradient_checkpointing": True})
    plain, _ = run(tmp_path, 3)
    assert losses.by_batch[1] == pytest.approx(plain.by_batch[1], abs=0.1)
    assert all(math.isfinite(loss) for loss in losses.by_batch.values())
