"""MVPFormer: wavelet encoder of 5 s segments, a causal stack of MVPA blocks, prediction and classification heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from einops import rearrange
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from mvpa_ts.attention import MVPAttention
from mvpa_ts.attention.functional import check_mask, merged_mask
from mvpa_ts.attention.module import extent
from mvpa_ts.blocks import MVPAStack, ParallelBlock, SwiGLU
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.model.amplitude import LEVEL_SEGMENTS, AmplitudeMap, band_log_power
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.ieeg.model.pretrained import hub_answers, pretrained_config, pretrained_file, write_card
from mvpa_ts.ieeg.model.rotary import RotaryAttention
from mvpa_ts.ieeg.model.wavelet import WaveletEncoder
from mvpa_ts.weights import WEIGHTS_NAME, load_strictly, read_weights, save_model


class MVPFormer(  # type: ignore[call-arg]
    nn.Module, PyTorchModelHubMixin, library_name="mvpa-ts", tags=["iEEG", "time-series"]
):
    """Foundation model of intracranial EEG.

    Each 5 s segment of each channel becomes one token; parallel blocks of MVPA, causal in time, turn the tokens into
    features, from which the next segment's embedding is predicted and the last segment is classified.

    Parameters
    ----------
    config : MVPFormerConfig

    Attributes
    ----------
    encoder : WaveletEncoder
    amplitude : AmplitudeMap or None
        What is added to the encoder's embedding; None with ``amplitude="none"``.
    stack : MVPAStack
    prediction_head, head : nn.Linear or None
        Prediction of the next embedding, and classification; None where the configuration asks for none.

    Notes
    -----
    Signals are µV at 512 Hz, [B, C, T·2560]. Masks are bool, True = real: `channel_mask` [B, C], `segment_mask`
    [B, T], `token_mask` [B, T, C]. What is stored where a mask is False does not matter, NaN included, and the
    features there are zero.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    >>> model = MVPFormer(mvpformer_tiny())
    >>> signal = torch.randn(2, 3, 4 * 2560)  # 2 recordings, 3 channels, 20 s
    >>> model(signal).shape
    torch.Size([2, 4, 3, 64])
    """

    def __init__(self, config: MVPFormerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = WaveletEncoder(config.dim)
        self.amplitude = AmplitudeMap(config.dim) if config.amplitude == "bands" else None
        self.dropout = nn.Dropout(config.dropout)
        blocks = [
            ParallelBlock(_attention(config), SwiGLU(config.dim, config.mlp_dim), config.dim, config.dropout)
            for _ in range(config.num_layers)
        ]
        rows = (config.time_rows, config.channel_rows) if config.attention == "mvpa" else (0, 0)
        self.stack = MVPAStack(blocks, config.dim, *rows)
        self.prediction_head = nn.Linear(config.dim, config.dim, bias=False) if config.prediction_head else None
        self.head = None
        if config.num_classes:
            self.head = nn.Linear(config.dim * (config.num_channels or 1), config.num_classes, bias=False)
        for name, parameter in self.stack.named_parameters():
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self,
        signal: Tensor,
        channel_mask: Tensor | None = None,
        segment_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
    ) -> Tensor:
        """Features [B, T, C, D] of a signal [B, C, T·2560], after the final norm."""
        B, C, samples = _checked_shape(signal)
        real = merged_mask((B, samples // SEGMENT_SAMPLES, C), channel_mask, segment_mask, token_mask)
        return self.decode(self.encode(signal, real), token_mask=real)

    def encode(self, signal: Tensor, token_mask: Tensor | None = None, past: Tensor | None = None) -> Tensor:
        """Segment embeddings [B, T, C, D] of a signal [B, C, T·2560]; where token_mask is False they are zero.

        `past` is what `encode_onward` gave for the signal before this one. Raises ValueError where the signal is not a
        whole number of segments: nothing is padded here.
        """
        return self.encode_onward(signal, token_mask, past)[0]

    def encode_onward(
        self, signal: Tensor, token_mask: Tensor | None = None, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Segment embeddings, and the past that the signal after this one is encoded with.

        A signal encoded piece by piece, each with the past of the one before, has the embeddings of the whole.

        Parameters
        ----------
        signal : Tensor, shape (B, C, T·2560)
        token_mask : bool Tensor, shape (B, T, C), optional
        past : Tensor, shape (B, P, C, bands), optional
            Log power of the segments before, of which the last 23 count; NaN where a channel had no signal.

        Returns
        -------
        embeddings : Tensor, shape (B, T, C, D)
        past : Tensor or None
            None with ``amplitude="none"``, where a segment is embedded by itself.
        """
        B, C, samples = _checked_shape(signal)
        if token_mask is not None:
            check_mask("token_mask", token_mask, (B, samples // SEGMENT_SAMPLES, C))
        segments = rearrange(signal, "b c (t samples) -> b t c samples", samples=SEGMENT_SAMPLES)
        if token_mask is not None:
            segments = segments.masked_fill(~token_mask[..., None], 0.0)
        if self.amplitude is None:
            return self.encoder(segments), None
        bands = self.encoder.bands(segments)
        embeddings = self.encoder.project(bands)
        log_power = band_log_power(bands)
        if token_mask is not None:
            log_power = log_power.masked_fill(~token_mask[..., None], torch.nan)
        embeddings = embeddings + self.amplitude(log_power, past).to(embeddings.dtype)
        if token_mask is not None:
            embeddings = embeddings.masked_fill(~token_mask[..., None], 0.0)
        joined = log_power if past is None else torch.cat([past.to(log_power), log_power], dim=1)
        return embeddings, joined[:, -(LEVEL_SEGMENTS - 1) :]

    def decode(
        self,
        embeddings: Tensor,
        channel_mask: Tensor | None = None,
        segment_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
    ) -> Tensor:
        """Features [B, T, C, D] of segment embeddings [B, T, C, D].

        Raises ValueError for another shape, and for more segments or channels than the codebooks have rows.
        """
        if embeddings.ndim != 4 or embeddings.shape[-1] != self.config.dim:
            raise ValueError(f"embeddings must be [B, T, C, D] with D = {self.config.dim}, got {(*embeddings.shape,)}")
        B, T, C, _ = embeddings.shape
        real = merged_mask((B, T, C), channel_mask, segment_mask, token_mask)
        if real is not None:
            embeddings = embeddings.masked_fill(~real[..., None], 0.0)
        if self.config.attention == "mvpa":
            self._check_rows(T, C, real)
        return self.stack(self.dropout(embeddings), token_mask=real)

    def predict(self, features: Tensor) -> Tensor:
        """Prediction [B, T, C, D] of the next segment's embedding, of the same channel, from features."""
        if self.prediction_head is None:
            raise ValueError("the model has no prediction head: make it with prediction_head=True")
        return self.prediction_head(features)

    def predict_next(self, signal: Tensor, **masks: Tensor | None) -> Tensor:
        """Prediction [B, T, C, D] at t of the embedding at t + 1; signal and masks as of `forward`."""
        return self.predict(self(signal, **masks))

    def classify(self, features: Tensor, channel_mask: Tensor | None = None) -> Tensor:
        """Logits [B, num_classes] of the last segment; class 1 is the seizure.

        `channel_mask` [B, C] keeps padding, and channels that are bad in the last segment, out of the mean.
        """
        if self.head is None:
            raise ValueError("the model has no classification head: make it with num_classes=2, or finetune it")
        last = features[:, -1]
        if self.config.pooling == "concatenate":
            if (channels := last.shape[1]) != self.config.num_channels:
                raise ValueError(f"the classification head needs {self.config.num_channels} channels, got {channels}")
            return self.head(rearrange(last, "b c d -> b (c d)"))
        if channel_mask is None:
            channel_mask = last.new_ones(last.shape[:2], dtype=torch.bool)
        check_mask("channel_mask", channel_mask, tuple(last.shape[:2]))
        real = channel_mask[..., None].to(last.dtype)
        count = real.sum(1).clamp(min=1)
        if self.config.pooling == "logsumexp":
            # The most suspicious channels count most, so that a focus is not averaged away.
            logits = self.head(last)
            suspicion = (logits[..., 1] - logits[..., 0]).masked_fill(~channel_mask, -1e4)
            pooled = (suspicion.logsumexp(1) - count[:, 0].log())[:, None] / 2
            return torch.cat([-pooled, pooled], dim=1)
        return self.head((last * real).sum(1) / count)

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Trade time for memory in training: keep one activation per block and compute the others again."""
        self.stack.gradient_checkpointing = enabled

    def save_pretrained(
        self, save_directory: str | Path, *, repo_id: str | None = None, push_to_hub: bool = False, **options: Any
    ) -> str | None:
        """Write config.json, model.safetensors and a card, README.md, unless a card of your own is there.

        A failed write leaves older files whole. With ``push_to_hub=True`` the model also goes to the Hugging Face hub
        as `repo_id` (default: the folder's name); `options` are those of `huggingface_hub.ModelHubMixin.push_to_hub`.
        Raises OSError where writing fails or the hub does not answer.
        """
        options = {name: value for name, value in options.items() if name not in ("config", "model_card_kwargs")}
        save_model(self, self.config.to_dict(), save_directory)
        write_card(self.config, sum(parameter.numel() for parameter in self.parameters()), save_directory)
        if not push_to_hub:
            return None
        repository = repo_id or Path(save_directory).name
        fact = f"the model is saved in {save_directory}, but not sent to {repository}: the Hugging Face hub"
        with hub_answers(f"{fact} could not be reached", ". Check the connection and call it again"):
            return self.push_to_hub(repo_id=repository, **options)  # type: ignore[operator]

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        **changes: Any,
    ) -> Self:
        """Load a model from a folder, from the Hugging Face hub, or the package's "demo" and "demo-base", to evaluate.

        Strict: every tensor must be there, none may be left over, and all shapes must fit. `changes` replace fields
        of the stored configuration, for example ``dropout=0.0``.

        Raises
        ------
        FileNotFoundError
            config.json or model.safetensors is not in the folder.
        NotADirectoryError
            The path is one of a file.
        ValueError
            A file is damaged, or the weights do not fit the configuration; the message says which.
        """
        options: dict[str, Any] = {"force_download": force_download, "token": token, "cache_dir": cache_dir}
        options |= {"local_files_only": local_files_only, "revision": revision}
        config = pretrained_config(pretrained_model_name_or_path, changes, **options)
        weights = pretrained_file(pretrained_model_name_or_path, WEIGHTS_NAME, **options)
        with torch.device("meta"):  # no memory and no random numbers for weights that come from the file
            model = cls(config)
        load_strictly(model, read_weights(weights), weights)
        return model.eval()

    def _check_rows(self, segments: int, channels: int, real: Tensor | None) -> None:
        if real is not None and self.config.row_order == "released":  # padding needs no rows there
            if torch.compiler.is_compiling():
                return  # how many are real is not known to a graph, which fails where it reads a row that is missing
            segments, channels = int(extent(real.any(2)).max()), int(extent(real.any(1)).max())
        for name, count, rows, advice in (
            ("segments of 5 s", segments, "time_rows", "give it fewer at a time, as embed(model, recording) does"),
            ("channels", channels, "channel_rows", "leave some out"),
        ):
            if count > (most := getattr(self.config, rows)):
                raise ValueError(
                    f"the input has {count} {name}, the model takes at most {most} ({rows}): {advice}, or make a model "
                    f"with more {rows}"
                )


def _attention(config: MVPFormerConfig) -> nn.Module:
    if config.attention == "llama":
        return RotaryAttention(config.dim, config.num_heads, config.num_kv_heads, config.dropout)
    return MVPAttention(
        config.dim,
        config.num_heads,
        config.num_kv_heads,
        causal=True,
        window=config.window,
        dense_last_segment=config.dense_last_segment,
        components=config.components,
        dropout=config.dropout,
        row_order=config.row_order,
    )


def _checked_shape(signal: Tensor) -> tuple[int, int, int]:
    if not isinstance(signal, Tensor):
        raise ValueError(f"signal must be a torch.Tensor, got {type(signal).__name__}: pass torch.from_numpy(signal)")
    if signal.ndim != 3 or 0 in signal.shape or signal.shape[2] % SEGMENT_SAMPLES:
        raise ValueError(
            f"signal must be [B, C, samples] with samples a multiple of {SEGMENT_SAMPLES} (5 s at 512 Hz), "
            f"got shape {tuple(signal.shape)}"
        )
    return signal.shape[0], signal.shape[1], signal.shape[2]
