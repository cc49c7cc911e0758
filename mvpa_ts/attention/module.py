"""MVPA as a module: projections, biases, and keys made from the two codebooks that all layers share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from einops import parse_shape, rearrange
from torch import Tensor, nn

from mvpa_ts.attention import functional
from mvpa_ts.attention.cache import KeyValueCache
from mvpa_ts.attention.last_segment import last_segment_attention
from mvpa_ts.attention.problem import autocast_dtype

# einops remembers each type it meets, and torch.compile guards that memory: a parameter first met while a network is
# traced would have the next call traced again.
parse_shape(nn.Parameter(torch.empty(0)), "n")


class MVPAttention(nn.Module):
    """Multi-variate parallel attention with its projections.

    Parameters
    ----------
    dim : int
        Model width D.
    num_heads : int
        Query heads H; the head width is ``dim // num_heads``.
    num_kv_heads : int, optional
        Key/value heads; default `num_heads`. Fewer make it grouped-query attention.
    causal, window, dense_last_segment, components, dropout, channel_distance, impl
        As in `mvpa_attention`. Dropout acts in training mode only.
    channel_window : int or None, default None
        As in `mvpa_attention`. It may also reach past all channels of an input, so that one module runs on any number
        of channels.
    row_order : {"distance", "released"}, default "distance"
        "distance": row r of a codebook stands for lag or distance r. "released": rows count down from the sample's
        extent (T−1−lag, C−1−distance), as the released MVPFormer checkpoints need; causal and absolute only.
        T and C run from the first to the last real segment and channel, so padding changes nothing. Exception: with
        `dense_last_segment`, do not pad after the last segment, because the last row is taken as it is.
    beyond : {"error", "clamp"}, default "error"
        What happens to lags and distances past the codebook: an error, or the codebook's last row, so that a model
        trained on 7 channels runs on 21. With `channel_window` the cost is then linear in the number of channels.
        (`mvpa_attention` has the same for channels alone, as `channel_beyond`.)
    device, dtype : optional
        Device and dtype of the parameters, as in torch's own layers.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts import MVPAttention
    >>> attention = MVPAttention(32, num_heads=4, causal=False)
    >>> time_codebook, channel_codebook = torch.randn(2 * 6 - 1, 32), torch.randn(5, 32)
    >>> attention(torch.randn(2, 6, 5, 32), time_codebook, channel_codebook).shape
    torch.Size([2, 6, 5, 32])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        causal: bool = True,
        window: int | None = None,
        dense_last_segment: bool = False,
        components: Iterable[str] = functional.COMPONENTS,
        dropout: float = 0.0,
        channel_distance: Literal["absolute", "signed"] = "absolute",
        row_order: Literal["distance", "released"] = "distance",
        channel_window: int | None = None,
        beyond: Literal["error", "clamp"] = "error",
        impl: functional.Implementation = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"dim ({dim}) must be a multiple of num_heads ({num_heads})")
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"num_heads ({num_heads}) must be a multiple of num_kv_heads ({num_kv_heads})")
        functional.check_switches(causal=causal, dense_last_segment=dense_last_segment)
        functional.check_options(window, channel_distance, dropout, impl, channel_window)
        if row_order not in ("distance", "released"):
            raise ValueError(f"row_order must be 'distance' or 'released', got {row_order!r}")
        if row_order == "released" and (not causal or channel_distance != "absolute"):
            raise ValueError("row_order='released' needs causal=True and channel_distance='absolute'")
        if beyond not in ("error", "clamp"):
            raise ValueError(f"beyond must be 'error' or 'clamp', got {beyond!r}")
        self.dim = dim
        self.head_dim = dim // num_heads
        self.causal = causal
        self.window = window
        self.dense_last_segment = dense_last_segment
        self.components = functional.checked_components(components)
        self.dropout = dropout
        self.channel_distance: Literal["absolute", "signed"] = channel_distance
        self.row_order = row_order
        self.channel_window = channel_window
        self.beyond: Literal["error", "clamp"] = beyond
        self.impl: functional.Implementation = impl

        kv_width = num_kv_heads * self.head_dim
        self.query = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)
        self.key = nn.Linear(dim, kv_width, bias=False, device=device, dtype=dtype)
        self.value = nn.Linear(dim, kv_width, bias=False, device=device, dtype=dtype)
        self.time_key = nn.Linear(dim, kv_width, bias=False, device=device, dtype=dtype)
        self.channel_key = nn.Linear(dim, kv_width, bias=False, device=device, dtype=dtype)
        self.output = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)
        zeros = torch.zeros(num_kv_heads, self.head_dim, device=device, dtype=dtype)
        self.content_bias = nn.Parameter(zeros)
        self.time_bias = nn.Parameter(zeros.clone())
        self.channel_bias = nn.Parameter(zeros.clone())

    def reset_parameters(self) -> None:
        """Draw new projections and set the biases to zero, as after ``to_empty`` of a module on the meta device."""
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        for bias in (self.content_bias, self.time_bias, self.channel_bias):
            nn.init.zeros_(bias)

    def extra_repr(self) -> str:
        """Sizes, and the options that differ from their defaults, for print(module)."""
        shown = {"num_heads": self.dim // self.head_dim, "num_kv_heads": len(self.content_bias)} | {
            name: getattr(self, name)
            for name, option in inspect.signature(MVPAttention).parameters.items()
            if option.kind is option.KEYWORD_ONLY and getattr(self, name, option.default) != option.default
        }
        return ", ".join([str(self.dim), *(f"{name}={value!r}" for name, value in shown.items())])

    def forward(
        self,
        x: Tensor,
        time_codebook: Tensor | None = None,
        channel_codebook: Tensor | None = None,
        *,
        channel_mask: Tensor | None = None,
        segment_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Attend within x [B, T, C, D], given codebooks [R, D]; returns [B, T, C, D].

        Causal use has one time row per lag; bidirectional use has an odd number of rows with lag 0 in the middle. The
        codebook of a term that `components` lacks may be left out.
        The masks are those of `mvpa_attention`. Raises ValueError where a codebook is too short and
        ``beyond="error"``.
        """
        if x.ndim != 4 or x.shape[3] != self.dim or 0 in x.shape:
            raise ValueError(
                f"x must be [B, T, C, D] with D = dim = {self.dim} and no empty axis, got shape {tuple(x.shape)}"
            )
        functional.check_floats("x", x, self.content_bias)
        T, C = x.shape[1:3]
        real = functional.merged_mask((x.shape[0], T, C), channel_mask, segment_mask, token_mask)
        if real is not None:
            x = x.masked_fill(~real[..., None], 0.0)  # so that no NaN reaches the gradients of the projections
        if real is None or self.row_order == "distance":
            return self._attend(x, time_codebook, channel_codebook, (T, C), real, generator)

        # Samples of one extent run together: the meaning of a released row moves with the sample's T and C. A graph
        # cannot depend on which these are, and takes one sample after the other.
        extents = torch.stack([extent(real.any(2)), extent(real.any(1))], dim=1)
        codebooks = time_codebook, channel_codebook
        if torch.compiler.is_compiling():
            single = zip(x.split(1), real.split(1), extents, strict=True)
            return torch.cat(
                [self._attend(sample, *codebooks, (rows[0], rows[1]), mask, generator) for sample, mask, rows in single]
            )
        output = torch.zeros_like(x)
        for segments, channels in extents.unique(dim=0).tolist():
            samples = (extents == extents.new_tensor((segments, channels))).all(1).nonzero().squeeze(1)
            attended = self._attend(x[samples], *codebooks, (segments, channels), real[samples], generator)
            output = output.to(attended.dtype).index_copy(0, samples, attended)
        return output

    @torch.no_grad()
    def make_cache(
        self, time_codebook: Tensor | None, channel_codebook: Tensor | None, *, num_channels: int, context: int
    ) -> KeyValueCache:
        """Make a cache of keys and values for `step`, for one stream that attends to its newest `context` segments.

        With ``row_order="released"`` a stream has the rows of `context` segments and `num_channels` channels from its
        first segment on. Raises ValueError where the module is not causal, its distances are signed, it has a
        `channel_window`, or a codebook is too short.

        Examples
        --------
        >>> import torch
        >>> from mvpa_ts import MVPAttention
        >>> attention = MVPAttention(32, num_heads=4).eval()
        >>> time_codebook, channel_codebook = torch.randn(6, 32), torch.randn(5, 32)
        >>> cache = attention.make_cache(time_codebook, channel_codebook, num_channels=5, context=6)
        >>> with torch.no_grad():
        ...     for segment in torch.randn(8, 1, 5, 32):  # one sample, 5 channels
        ...         cache.advance()  # room for the new segment; the oldest of 7 is dropped
        ...         newest = attention.step(segment, cache)  # [1, 5, 32]
        """
        for name, size in (("num_channels", num_channels), ("context", context)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if not self.causal or self.channel_distance != "absolute" or self.channel_window is not None:
            raise ValueError(
                "a stream needs causal=True, channel_distance='absolute' and channel_window=None, got "
                f"{self.causal}, {self.channel_distance!r} and {self.channel_window}"
            )
        like = self.content_bias
        time_key = self._keys("time_codebook", time_codebook, context, context, like)
        channel_key = self._keys("channel_codebook", channel_codebook, num_channels, num_channels, like)
        # One row for each distance, as `last_segment_attention` reads them.
        last = channel_key[-1:].expand(num_channels - len(channel_key), -1, -1)
        return KeyValueCache(time_key, torch.cat([channel_key, last]))

    @torch.no_grad()
    def step(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """Attend from a stream's newest segment to those in the cache and to itself; for inference, without gradients.

        Call ``cache.advance()`` before each step; `make_cache` has an example. A cache serves one stream.

        Parameters
        ----------
        x : Tensor, shape (1 or 2, C, D)
            The newest segment. With `dense_last_segment` its content is scored against all segments while it is the
            last one, and within the window later on: where that differs, the first row is the output and the second
            row, computed with the window, is what the cache keeps for the segments to come.
        cache : KeyValueCache
            After `advance` for this segment.

        Returns
        -------
        Tensor, shape (1 or 2, C, D)

        Raises
        ------
        ValueError
            `x` has another shape, or the module another precision than the cache.
        RuntimeError
            `advance` was not called for this segment.
        """
        C = cache.channel_key.shape[0]
        if x.ndim != 3 or x.shape[0] not in (1, 2) or x.shape[1:] != (C, self.dim):
            raise ValueError(
                f"x must be the newest segment of one stream, [1, C, D] = [1, {C}, {self.dim}] (or two rows, see the "
                f"docstring), got shape {tuple(x.shape)}; several streams need a cache each"
            )
        if not cache.has_room:
            raise RuntimeError("call cache.advance() before each step: the cache has no room for a new segment")
        query, key, value = self._projected(x)
        if query.dtype != cache.keys.dtype and autocast_dtype(query) is None:
            raise ValueError(
                f"the cache holds {cache.keys.dtype} and the newest segment is {query.dtype}: make a new cache after "
                "a change of precision"
            )
        attended = torch.empty_like(query)
        for row in range(len(x)):
            cache.write(key[row], value[row])
            attended[row] = last_segment_attention(
                query[row],
                cache.keys[:, cache.seen],
                cache.values[:, cache.seen],
                cache.time_key,
                cache.channel_key,
                *self._biases(),
                window=None if self.dense_last_segment and row == 0 else self.window,
                components=self.components,
                real=cache.real,
            )
        return self.output(rearrange(attended, "s c h d -> s c (h d)"))

    def _attend(
        self,
        x: Tensor,
        time_codebook: Tensor | None,
        channel_codebook: Tensor | None,
        extent: tuple[int | Tensor, int | Tensor],
        real: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        T, C = x.shape[1:3]
        attended = functional.mvpa_attention(
            *self._projected(x),
            self._keys("time_codebook", time_codebook, T, extent[0], x),
            self._keys("channel_codebook", channel_codebook, C, extent[1], x),
            *self._biases(),
            causal=self.causal,
            window=self.window,
            dense_last_segment=self.dense_last_segment,
            components=self.components,
            channel_distance=self.channel_distance,
            channel_window=None if self.channel_window is None or self.channel_window >= C else self.channel_window,
            channel_beyond=self.beyond,
            token_mask=real,
            dropout=self.dropout if self.training else 0.0,
            generator=generator,
            impl=self.impl,
        )
        return self.output(rearrange(attended, "b t c h d -> b t c (h d)"))

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., H, d], and keys and values [..., H_kv, d], of tokens [..., D]."""
        layers = (self.query, self.key, self.value)
        query, key, value = (rearrange(layer(x), "... (h d) -> ... h d", d=self.head_dim) for layer in layers)
        return query, key, value

    def _biases(self) -> tuple[Tensor, Tensor, Tensor]:
        return _local(self.content_bias), _local(self.time_bias), _local(self.channel_bias)

    def _keys(self, name: str, codebook: Tensor | None, size: int, extent: int | Tensor, like: Tensor) -> Tensor:
        """Keys [R, H_kv, d] of the codebook's `_rows`; of zeros where it is None because its term is off."""
        term = name.removesuffix("_codebook")
        two_sided = self.channel_distance == "signed" if term == "channel" else not self.causal
        if codebook is None and term not in self.components:
            codebook = like.new_zeros(2 * size - 1 if two_sided else size, self.dim)
        if not isinstance(codebook, Tensor):
            got = f"None; only components without {term!r} need none" if codebook is None else type(codebook).__name__
            raise ValueError(f"{name} must be a tensor [R, D] with D = dim = {self.dim}, got {got}")
        projection = self.channel_key if term == "channel" else self.time_key
        functional.check_floats(name, codebook, projection.weight)
        rows = self._rows(name, codebook, size, extent, two_sided=two_sided)
        return rearrange(projection(codebook[rows]), "r (h d) -> r h d", d=self.head_dim)

    def _rows(self, name: str, codebook: Tensor, size: int, extent: int | Tensor, *, two_sided: bool) -> Tensor:
        """Codebook rows for the distances 0 … size−1 (or −(size−1) … size−1), in the order `mvpa_attention` reads."""
        if codebook.ndim != 2 or codebook.shape[1] != self.dim:
            raise ValueError(f"{name} must be [R, D] with D = dim = {self.dim}, got shape {tuple(codebook.shape)}")
        available = codebook.shape[0]
        if two_sided and available % 2 == 0:
            raise ValueError(
                f"{name} must have an odd number of rows with {_two_sided_option(name)}: 2·{extent} − 1 = "
                f"{2 * extent - 1} for {extent} positions, distance 0 in the middle; got {available}"
            )
        reach = (available + 1) // 2 if two_sided else available
        # In a compiled graph `extent` may be a tensor. Rows that the codebook lacks are then an IndexError.
        if self.beyond == "error" and not isinstance(extent, Tensor) and extent > reach:
            needed = f"2·{extent} − 1 = {2 * extent - 1}" if two_sided else f"{extent}"
            because = f" ({_two_sided_option(name)})" if two_sided else ""
            raise ValueError(
                f"{name} covers {reach} positions, the input has {extent}; lengthen it from {available} to {needed} "
                f"rows{because}, or make the module with beyond='clamp'"
            )
        if self.row_order == "released":
            # Distances beyond the real extent occur only between padding tokens: any row will do.
            last = available - 1 if self.beyond == "clamp" else None
            return (extent - 1 - torch.arange(size, device=codebook.device)).clamp(0, last)
        if name == "channel_codebook" and self.beyond == "clamp":
            size = min(size, reach)  # `mvpa_attention` reads the end rows for what lies beyond
        first = -(size - 1) if two_sided else 0
        distances = torch.arange(first, size, device=codebook.device)
        return (distances + (reach - 1 if two_sided else 0)).clamp(0, available - 1)


def _two_sided_option(name: str) -> str:
    """The option by which a codebook has rows for distances of both signs."""
    return "causal=False" if name == "time_codebook" else "channel_distance='signed'"


def _local(parameter: Tensor) -> Tensor:
    """Heads that this process has of a parameter that torch.distributed divides; any other as it is."""
    to_local: Callable[[], Tensor] | None = getattr(parameter, "to_local", None)
    return parameter if to_local is None else to_local()


def extent(real: Tensor) -> Tensor:
    """Positions from the first to the last True of each row; [B, n] -> [B]."""
    size = real.shape[1]
    position = torch.arange(1, size + 1, device=real.device)
    last = (position * real).amax(1)
    first = torch.where(real, position, size + 1).amin(1)
    return (last - first + 1).clamp(min=0)
