"""What a training step of MVPFormer takes, by formula: operations, bytes kept, bytes sent."""

from __future__ import annotations

from collections.abc import Callable

from mvpa_ts.ieeg.model.configuration import MVPFormerConfig, mvpformer_m, mvpformer_s

SIZES: dict[str, Callable[..., MVPFormerConfig]] = {"S": mvpformer_s, "M": mvpformer_m}
WAVELET = 2610  # coefficients of a segment of one channel


def dense_flop(config: MVPFormerConfig) -> tuple[float, float]:
    """Operations of the linear maps for a token, forward: of encoder and head, and of one layer."""
    kv = config.num_kv_heads * (config.dim // config.num_heads)
    layer = 2 * config.dim * (2 * config.dim + 2 * kv + 3 * config.mlp_dim)
    return 2 * config.dim * (WAVELET + config.dim), layer


def pairs(T: int, C: int, window: int = 10) -> tuple[float, float]:
    """Query–key pairs of one head with and without content, causal, the last segment dense."""
    near = sum(min(t, window) + 1 for t in range(T - 1)) + T
    return near * C * C, (T * (T + 1) // 2 - near) * C * C


def attention_flop(config: MVPFormerConfig, T: int, C: int) -> tuple[float, float]:
    """Operations of one layer's pairs, forward and with backward; 4·d and 14·d near, 2·d and 6·d far."""
    near, far = pairs(T, C)
    return config.dim * (4 * near + 2 * far), config.dim * (14 * near + 6 * far)


def training_flop(config: MVPFormerConfig, T: int, C: int, extra: float = 1.0) -> float:
    """Operations of forward and backward of one window; `extra` is what the counted pairs exceed the formula's by."""
    outer, layer = dense_flop(config)
    attention = extra * attention_flop(config, T, C)[1]
    # The encoder's input needs no gradient: 2 of 3 products there.
    encoder = 2 * config.dim * WAVELET
    return T * C * (3 * outer - encoder + 3 * config.num_layers * layer) + config.num_layers * attention


def activation_bytes(fitted: dict[str, float], config: MVPFormerConfig, precision: str, checkpointing: bool) -> float:
    """Bytes kept for a token between forward and backward pass; with checkpointing a layer's input and one layer."""
    layer, outside = fitted[f"layer_bytes_{precision}"], fitted[f"outside_bytes_{precision}"]
    layers = config.num_layers * 4 * config.dim + layer if checkpointing else config.num_layers * layer
    return layers + outside + fitted["loss_bytes"]


def state_bytes(parameters: float, block: float, strategy: str, gpus: int) -> float:
    """Weights, gradients and AdamW's moments of one GPU, in float32, and the strategy's buffers."""
    if strategy == "ddp":  # gradients once more, in the buckets that are reduced
        return parameters * (16 if gpus == 1 else 20)
    if strategy == "ZeRO, stage 2":  # gradients and moments divided
        return parameters * (4 + 12 / gpus)
    return parameters * 16 / gpus + 2 * 8 * block  # fsdp: all divided; two blocks' weights and gradients whole


def traffic_bytes(parameters: float, strategy: str, gpus: int) -> float:
    """Bytes that one GPU sends in a step: a ring all-reduce of gradients, or gathers and scatters of the parts."""
    share = (gpus - 1) / gpus
    return parameters * 4 * share * (3 if strategy == "fsdp" else 2)
