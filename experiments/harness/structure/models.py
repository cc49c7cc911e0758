"""MVPA, its arms and its peers behind one call, and what their scores look like."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import torch
from einops import rearrange
from harness.structure.tasks import Task
from torch import Tensor, nn

from mvpa_ts.attention import module as attention_module
from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, ForecastingNetwork

# Terms of the score in the attention and in the heads of the linear path; distances, that is without channel vectors.
ARMS: dict[str, dict[str, Any]] = {
    "MVPA": {},
    "MVPA, own channel only": {"mixing_heads": 0, "channel_vectors": None},
    "MVPA, content": {"components": ("content",)},
    "MVPA, time": {"components": ("time",)},
    "MVPA, channel": {"components": ("channel",)},
    "MVPA, time + channel": {"components": ("time", "channel")},
    "MVPA, none": {"components": ()},
    "MVPA, no channel vectors": {"channel_vectors": None},
    "MVPA, before": {
        "patch_length": 48, "patch_stride": 24, "channel_distance": "absolute", "mixing_heads": 0,
        "channel_vectors": None, "covariate_maps": False,
    },
    "Linear": {"num_layers": 0, "mixing_heads": 0, "channel_vectors": None},
}  # fmt: skip
# Of tasks with covariates alone.
COVARIATE_ARMS: dict[str, dict[str, Any]] = {"MVPA, one map of covariates": {"covariate_heads": 0}}
# Sizes of the host's defaults, smaller where those are made for far longer trainings. The learning rates were not
# tuned, while MVPA's settings were chosen over some thirty validation runs: the comparison favours MVPA.
PEERS: dict[str, dict[str, Any]] = {
    "TSMixer": {"dropout": 0.1},
    "TSMixerx": {"dropout": 0.1},
    "iTransformer": {"hidden_size": 128, "d_ff": 256},
    "TimeXer": {"hidden_size": 128, "d_ff": 256},
    "PatchTST": {"encoder_layers": 2, "n_heads": 8},
}
PEER_RATES = {"TSMixer": 5e-3, "TSMixerx": 5e-3, "iTransformer": 1e-3, "TimeXer": 1e-3, "PatchTST": 1e-3}
TRAINING = ForecasterTraining(batch_size=32, loss="mse", keep="last")


class Arm(nn.Module):
    """A network of this library that is told of the covariate what a task says is known of it."""

    def __init__(self, network: ForecastingNetwork, features: str | None, alone: bool) -> None:
        super().__init__()
        self.network, self.features, self.alone = network, features, alone

    def forward(self, x: Tensor, **inputs: Tensor | None) -> Tensor:
        """Map [B, L, C] to [B, h, C, 1]."""
        future = inputs.pop("future", None)
        known = {} if future is None or self.features is None else {self.features: future}
        if self.features == "historic" and future is not None:
            known = {"historic": future[:, : x.shape[1]]}
        if not self.alone:
            return self.network(x, mask=inputs["mask"], units=inputs["units"], **known)
        # Every channel is a sample with one channel: nothing is read from another.
        C, mask = x.shape[2], inputs["mask"]
        known = {name: rearrange(tensor, "b t c f -> (b c) t 1 f") for name, tensor in known.items()}
        mask = None if mask is None else rearrange(mask, "b t c -> (b c) t 1")
        forecast = self.network(rearrange(x, "b t c -> (b c) t 1"), mask=mask, **known)
        return rearrange(forecast, "(b c) h 1 m -> b h c m", c=C)


class Peer(nn.Module):
    """A model of neuralforecast called by its ``forward(windows_batch)``; what is missing stands as its mean, 0."""

    def __init__(self, model: Any, features: str | None) -> None:
        super().__init__()
        self.model, self.features = model, features

    def forward(self, x: Tensor, **inputs: Tensor | None) -> Tensor:
        """Map [B, L, C] to [B, h, C, 1]."""
        C, future = x.shape[2], inputs.get("future")
        windows = x if self.model.MULTIVARIATE else rearrange(x, "b l c -> (b c) l 1")
        batch = dict.fromkeys(("futr_exog", "hist_exog", "stat_exog"))
        batch |= {"insample_y": windows, "insample_mask": torch.ones_like(windows)}
        if self.features is not None and future is not None:
            features = rearrange(future, "b t c f -> b f t c")
            name = "futr_exog" if self.features == "future" else "hist_exog"
            batch[name] = features if name == "futr_exog" else features[:, :, : x.shape[1]]
        forecast = self.model(batch)
        if not self.model.MULTIVARIATE:
            forecast = rearrange(forecast, "(b c) h 1 -> b h c", c=C)
        return forecast[..., None]


def models_of(task: Task) -> list[str]:
    """Names of the models that a task is for: where there is a covariate, the peers that read its kind."""
    lookback = task.windows["train"].lookback
    arms = [name for name, changes in ARMS.items() if changes.get("patch_length", 0) <= lookback]
    if task.features is None:
        return [*arms, *(name for name in PEERS if name != "TSMixerx")]
    return [*arms, *COVARIATE_ARMS, "TSMixerx", "iTransformer" if task.features == "future" else "TimeXer"]


def build(name: str, task: Task) -> tuple[nn.Module, float]:
    """The untrained model and the peak of its learning rate."""
    windows = task.windows["train"]
    L, h = windows.lookback, windows.horizon
    size = 0 if windows.features is None else windows.features.shape[1]
    arms = {**ARMS, **COVARIATE_ARMS}
    if name in arms:
        sizes = {f"{task.features}_size": size} if task.features else {}
        changes = {**sizes, "channel_vectors": task.channels, **arms[name]}
        if name == "Linear":
            changes = {key: value for key, value in changes.items() if key not in sizes}
        network = ForecastingNetwork(ForecastingConfig(h, L, **changes))
        features = task.features if name != "Linear" else None
        return Arm(network, features, alone=name == "MVPA, own channel only"), TRAINING.learning_rate

    import neuralforecast.models as host
    from harness.quiet import silence

    silence()
    model_class = getattr(host, name)
    settings = {"h": h, "input_size": L, **PEERS[name]}
    if model_class.MULTIVARIATE:
        settings["n_series"] = task.channels
    if task.features is not None:
        settings["futr_exog_list" if task.features == "future" else "hist_exog_list"] = [
            f"driver {column}" for column in range(size)
        ]
    return Peer(model_class(**settings), task.features), PEER_RATES[name]


@torch.no_grad()
def score_statistics(model: Arm, inputs: dict[str, Tensor | None]) -> dict[str, float]:
    """Standard deviation over keys of each term of the logit, and entropy of the weights as a share of uniform.

    "mixing" is the linear path, of which all queries of a channel have one score.
    """
    found: dict[str, float] = {}

    def watched(query: Tensor, key: Tensor, value: Tensor, *tables: Tensor, **options: Any) -> Tensor:
        _, T, C, _, d = query.shape
        time_key, channel_key, content_bias, time_bias, channel_bias = tables
        lag = torch.arange(T)[:, None] - torch.arange(T) + (len(time_key) - 1) // 2
        reach = (len(channel_key) - 1) // 2  # channels further apart share the end rows
        distance = (torch.arange(C)[:, None] - torch.arange(C)).clamp(-reach, reach) + reach
        content = torch.einsum("btchd,bsehd->bhtcse", query + content_bias, key)
        time = torch.einsum("btchd,tshd->bhtcs", query + time_bias, time_key[lag])[..., None]
        channel = torch.einsum("btchd,cehd->bhtce", query + channel_bias, channel_key[distance])[..., None, :]
        logits = (content + time + channel).flatten(4) * d**-0.5
        scores = {"content": content.flatten(4), "time": time.flatten(4), "channel": channel.flatten(4)}
        for name, score in scores.items():
            found[name] = (score * d**-0.5).std(-1).mean().item()
        found["entropy"] = _entropy(logits.softmax(-1))
        return original(query, key, value, *tables, **options)

    original = attention_module.mvpa_attention
    model.eval()
    with mock.patch.object(attention_module, "mvpa_attention", watched):
        model(**inputs)
    mixing = model.network.mixing
    if mixing is not None:
        C = inputs["x"].shape[2]  # type: ignore[union-attr]
        distances, vectors = mixing._distance_scores(C), mixing._identities(C, None)
        found["mixing, distance"] = distances.std(-1).mean().item()
        found["mixing, vectors"] = 0.0 if vectors is None else vectors.std(-1).mean().item()
        score = distances if vectors is None else distances + vectors
        nothing = (3.0 * mixing.nothing_score)[:, None, None].expand(-1, C, 1)
        weights = torch.cat([score, nothing], dim=-1).softmax(-1)
        found["mixing, entropy"] = _entropy(weights)
        found["mixing, nothing"] = weights[..., -1].mean().item()
    return found


def _entropy(weights: Tensor) -> float:
    return -(weights * weights.clamp(min=1e-12).log()).sum(-1).mean().item() / math.log(weights.shape[-1])
