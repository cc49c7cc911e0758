"""Contrastive pretraining of MVPFormer as a Lightning module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig, mvpformer_tiny
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.random_streams import stream_seed
from mvpa_ts.ieeg.recordings.swec_table import identity
from mvpa_ts.ieeg.training import similarity
from mvpa_ts.ieeg.training.contrastive import Pool, Spans, contrastive_logits, info_nce, mean_loss
from mvpa_ts.ieeg.training.module import RECORD, TrainingModule
from mvpa_ts.ieeg.training.spans import real_tokens, unfold_windows
from mvpa_ts.weights import check_tensors

__all__ = ["PretrainingModule", "info_nce", "load_pretrained", "measure_similarity"]

_TINY = mvpformer_tiny()
# What `predict_windows` gives: embeddings, predictions, and which tokens are real.
Predicted = tuple[Tensor, Tensor, Tensor]


class PretrainingModule(TrainingModule):
    """Next-segment prediction by InfoNCE, see `mvpa_ts.ieeg.training.contrastive.info_nce`.

    A batch holds spans of S consecutive segments. Each segment is encoded once, and the W = S − T windows of a span are
    cut from the embeddings; T is ``architecture.context``. Prediction t of a window is compared with segment t + 1, and
    the last prediction with the segment after the window.

    The random numbers of dropout and negatives follow from (`seed`, batch, rank), not from a generator whose state
    changes during the training. So a run that continues from a checkpoint is the same run.

    Parameters
    ----------
    architecture : MVPFormerConfig
    learning_rate : float, default 1e-4
        Highest learning rate of AdamW, as in the paper.
    weight_decay : float, default 0.1
        For matrices; gains, biases and codebooks are not decayed. As in the paper; the released code has 0.01.
    schedule : {"cosine", "constant"}, default "cosine"
        Learning rate after the warm-up: "cosine" falls to `final_rate` over the steps of the trainer, "constant" stays.
    warmup_steps : int, default 1000
        Steps in which the learning rate rises linearly from zero.
    final_rate : float, default 0.1
        Share of the learning rate at which "cosine" ends.
    num_negatives : int, default 30
    temperature : float, default 0.1
    shared_negatives : int, default 0
        Each process gives this many random segments of its batch to a pool, from which all processes draw negatives. So
        more processes mean more variety. 0: each process draws from its batch. A step receives 4·D bytes for each.
    gradient_checkpointing : bool, default False
        Compute each block again in the backward pass: less memory, about 30 % more time.
    seed : int, default 0

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg.model.configuration import mvpformer_tiny
    >>> from mvpa_ts.ieeg.training.pretraining import PretrainingModule
    >>> module = PretrainingModule(mvpformer_tiny(context=4), warmup_steps=10)
    >>> batch = {"signal": torch.randn(2, 3, 5 * 2560), "subject": ["a", "b"], "start": torch.zeros(2)}
    >>> loss, accuracy, predictions = module.loss_and_accuracy(batch, torch.Generator().manual_seed(0))
    >>> loss.shape, predictions
    (torch.Size([]), 24)
    """

    task = "pretrain"
    recorded = ("num_negatives", "temperature", "shared_negatives")

    def __init__(
        self,
        architecture: MVPFormerConfig = _TINY,
        learning_rate: float = 1e-4,
        weight_decay: float = 0.1,
        schedule: Literal["cosine", "constant"] = "cosine",
        warmup_steps: int = 1000,
        final_rate: float = 0.1,
        num_negatives: int = 30,
        temperature: float = 0.1,
        shared_negatives: int = 0,
        gradient_checkpointing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(learning_rate, weight_decay, schedule, warmup_steps, final_rate, seed)
        self.architecture = architecture
        if not self.architecture.prediction_head:
            raise ValueError("pretraining needs an architecture with prediction_head=True")
        self.num_negatives = num_negatives
        self.temperature = temperature
        self.shared_negatives = shared_negatives
        # The initial weights, too, follow from the seed alone.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "initialisation"))
            # In a fork of the random stream, so that nothing the caller draws changes the model.
            self.model = MVPFormer(self.architecture)
        self.model.set_gradient_checkpointing(gradient_checkpointing)
        self._tables: list[pd.DataFrame] = []
        self.similarity: similarity.Similarity | None = None

    def loss_and_accuracy(
        self, batch: Mapping[str, Any], generator: torch.Generator, *, shared: int = 0
    ) -> tuple[Tensor, Tensor, int]:
        """Compute InfoNCE of all windows, the share of predictions nearest to their target, and how many there are."""
        windows = batch["signal"].shape[2] // SEGMENT_SAMPLES - self.architecture.context
        return self._contrast(batch, predict_windows(self.model, batch, windows), generator, shared)

    def _contrast(
        self, batch: Mapping[str, Any], predicted: Predicted, generator: torch.Generator, shared: int = 0
    ) -> tuple[Tensor, Tensor, int]:
        """Compute loss, accuracy, and the number of predictions that they are means over."""
        embeddings, prediction, real = predicted
        S = sum(prediction.shape[1:3])
        embeddings, real = embeddings[:, :S], real[:, :S]
        spans = Spans.of(_recordings(batch), batch["start"].to(embeddings.device), S)
        pool = Pool.of(embeddings, real, spans)
        # All ranks draw from one pool, as the variety of negatives is what large batches are good for.
        if shared:
            pool = pool.sample(shared, generator).gathered()
        logits = contrastive_logits(
            prediction,
            embeddings,
            real=real,
            spans=spans,
            pool=pool,
            num_negatives=self.num_negatives,
            temperature=self.temperature,
            generator=generator,
        )
        right = logits[:, 0] > logits[:, 1:].amax(1)
        return mean_loss(logits, prediction), right.sum() / max(1, len(right)), len(right)

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        """Compute the loss of a batch; log ``train/loss`` and ``train/accuracy``."""
        generator = self.generator("negatives", self.batches_done, self.global_rank)
        loss, accuracy, count = self.loss_and_accuracy(batch, generator, shared=self.shared_negatives)
        size = batch["signal"].shape[0]
        self.log("train/loss", loss, prog_bar=True, batch_size=size)
        self.log("train/accuracy", accuracy, batch_size=size)
        self.log("train/learning_rate", self.optimizers().param_groups[0]["lr"], batch_size=size)
        self.batches_done += 1
        return self.over_processes(self.checked(loss), torch.tensor(count, device=loss.device))

    def on_validation_epoch_start(self) -> None:
        """Forget the similarities of the previous validation."""
        self._tables = []

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        """Compute loss and three-reference similarity of the first window of each span."""
        predicted = _predict_with_references(self.model, batch)
        generator = self.generator("validation", batch_idx, self.global_rank)
        loss, accuracy, _ = self._contrast(batch, predicted, generator)
        size = len(batch["signal"])
        self.log("validation/loss", loss, prog_bar=True, sync_dist=True, batch_size=size)
        self.log("validation/accuracy", accuracy, sync_dist=True, batch_size=size)
        self._tables.append(_similarity_table(batch, predicted, generator))

    def on_validation_epoch_end(self) -> None:
        """Log mean similarities over all processes; `similarity` holds them by segment."""
        # Means over subjects need the rows of all processes, which saw different spans.
        tables = self._tables
        if self.trainer.world_size > 1:
            gathered: list[Any] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(gathered, tables)
            tables = [table for of_rank in gathered for table in of_rank]
        self.similarity = similarity.Similarity(tables)
        overall = self.similarity.overall().set_index("state")
        for state in ("all", *similarity.STATES):
            for reference in similarity.REFERENCES:
                if state in overall.index:
                    name = f"similarity/{reference}" if state == "all" else f"similarity/{state}/{reference}"
                    self.log(name, overall[reference][state], rank_zero_only=True)

    @property
    def config(self) -> MVPFormerConfig:
        return self.architecture

    def export(self, folder: Path) -> None:
        """Write the model to ``folder/model``, from the run's last checkpoint."""
        load_pretrained(folder / "checkpoints" / "last.ckpt").save_pretrained(folder / "model")


def predict_windows(model: MVPFormer, batch: Mapping[str, Any], windows: int) -> Predicted:
    """Predict in the first windows of a batch of spans; each segment is encoded once.

    Returns
    -------
    embeddings : Tensor, shape (B, S, C, D)
    prediction : Tensor, shape (B, W, T, C, D)
        Made at segment w + t for segment w + t + 1.
    real : bool Tensor, shape (B, S, C)
        Tokens that are real under all masks of the batch.
    """
    T = model.config.context
    B, S = len(batch["signal"]), batch["signal"].shape[2] // SEGMENT_SAMPLES
    if not 1 <= windows <= S - T:
        raise ValueError(f"a span must have more segments than the context ({T}), got {S}")
    real = real_tokens(batch)
    token_mask = None if bool(real.all()) else real
    embeddings = model.encode(batch["signal"], token_mask, batch.get("past"))
    # A view: windows of one span share their embeddings, and only the decoder sees them unfolded.
    inputs, masks = (unfold_windows(x[:, : T + windows - 1], T).flatten(0, 1) for x in (embeddings, real))
    features = model.decode(inputs, token_mask=None if token_mask is None else masks)
    return embeddings, model.predict(features).unflatten(0, (B, windows)), real


def measure_similarity(model: MVPFormer, batches: Iterable[Mapping[str, Any]], seed: int = 0) -> similarity.Similarity:
    """Measure the three-reference similarity of a model over batches, as of `RecordingDataModule.val_dataloader`.

    With the same batches and seed, all models are compared with the same random references.

    Raises
    ------
    ValueError
        A batch has spans too short for two minutes after each prediction.
    """
    tables = []
    training = model.training
    model.eval()
    with torch.inference_mode():
        for number, batch in enumerate(batches):
            predicted = _predict_with_references(model, batch)
            generator = torch.Generator(predicted[0].device).manual_seed(stream_seed(seed, "references", number))
            tables.append(_similarity_table(batch, predicted, generator))
    model.train(training)
    return similarity.Similarity(tables)


def _predict_with_references(model: MVPFormer, batch: Mapping[str, Any]) -> Predicted:
    """Predict like `predict_windows`, in the first window only; two whole minutes follow each of its segments."""
    needed = model.config.context + similarity.TWO_MINUTES
    if (S := batch["signal"].shape[2] // SEGMENT_SAMPLES) < needed:
        raise ValueError(
            f"spans must hold the context and two minutes, {needed} segments, to be compared with what follows, got "
            f"{S}: read them by RecordingDataModule.val_dataloader, or pad them by collate(items, segments={needed})"
        )
    return predict_windows(model, batch, 1)


def _similarity_table(batch: Mapping[str, Any], predicted: Predicted, generator: torch.Generator) -> pd.DataFrame:
    embeddings, prediction, real = predicted
    measured = similarity.three_reference_similarity(prediction, embeddings, real=real, generator=generator)
    return similarity.table_of(measured, batch["ictal"], batch["subject"], _names(batch), batch["start"])


def load_pretrained(checkpoint: str | Path) -> MVPFormer:
    """Load the model from a training checkpoint of one file, for example to save it by `save_pretrained`."""
    from mvpa_ts.ieeg.training.checkpoints import AtomicCheckpointIO

    content = AtomicCheckpointIO().load_checkpoint(checkpoint)
    # Lightning's checkpoints of other projects have the same ending and the same keys.
    if RECORD not in content:
        raise ValueError(f"{checkpoint} was not written by `mvpformer pretrain`")
    model = MVPFormer(MVPFormerConfig.from_dict(content[RECORD]["architecture"]))
    weights = {name.removeprefix("model."): tensor for name, tensor in content["state_dict"].items()}
    check_tensors(model.state_dict(), weights, checkpoint)
    model.load_state_dict(weights)
    return model.eval()


def _names(batch: Mapping[str, Any]) -> list[str]:
    """Return the name of the recording of each span; the subject's name if the batch has no other."""
    return list(batch.get("recording", batch["subject"]))


def _recordings(batch: Mapping[str, Any]) -> list[str]:
    """Return a code for the recording of each span; both SWEC folders of one recording have the same code."""
    recordings = []
    for subject, name in zip(batch["subject"], _names(batch), strict=True):
        person = identity(subject)
        # A SWEC recording is named after its folder: "ID20", or "ID20_part_1".
        # The two folders of a person hold the same samples, which must not be negatives of each other.
        name = person + name.removeprefix(subject) if name.startswith(subject) else name
        recordings.append(f"{person}/{name}")
    return recordings
