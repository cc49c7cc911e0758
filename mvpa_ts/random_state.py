"""Random numbers of one's own: what torch draws within a block comes from generators that nobody else has."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_DRAWS = frozenset(
    [getattr(torch, name) for name in ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial")]
    + [getattr(torch, name) for name in ("poisson", "binomial", "rand_like", "randn_like")]
    + [torch.randint_like, torch._standard_gamma, torch._sample_dirichlet]
    + [getattr(Tensor, f"{name}_") for name in ("uniform", "normal", "bernoulli", "random", "exponential", "geometric")]
    + [getattr(Tensor, name) for name in ("bernoulli", "multinomial", "cauchy_", "log_normal_")]
    # Of torch's starts, those that a mode sees; the others call methods of tensors.
    + [getattr(nn.init, f"{name}_") for name in ("uniform", "normal", "kaiming_uniform")]
)


class OwnRandomState(TorchFunctionMode):
    """Let what torch draws in this thread come from generators of one's own; the state of the process stays as it was.

    Networks take their start from the random state of the process, and dropout draws from it. Two threads that train
    at once would take each other's numbers. Within the block, both draw from the generators of this object. The numbers
    on a CPU are those that `torch.manual_seed` would give.

    Parameters
    ----------
    seed : int, optional
        None begins with a copy of the state that is in force.

    Examples
    --------
    >>> import torch
    >>> def drawn():
    ...     with OwnRandomState(0):
    ...         return torch.rand(3)
    >>> before = torch.get_rng_state()
    >>> bool((drawn() == drawn()).all()), bool((torch.get_rng_state() == before).all())
    (True, True)
    """

    _stacks = threading.local()  # what blocks this thread is in

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        if seed is None:
            self.generator()

    @classmethod
    def current(cls) -> OwnRandomState | None:
        """The innermost block that this thread is in."""
        stack = getattr(cls._stacks, "blocks", [])
        return stack[-1] if stack else None

    def __enter__(self) -> Self:
        self._stacks.blocks = [*getattr(self._stacks, "blocks", []), self]
        super().__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._stacks.blocks = self._stacks.blocks[:-1]

    def manual_seed(self, seed: int) -> None:
        """Begin anew, as `torch.manual_seed` does."""
        self._seed, self._generators = seed, {}

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """The generator of a device."""
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._generators:
            generator = self._generators[device] = torch.Generator(device)
            if self._seed is not None:
                generator.manual_seed(int(self._seed))
            elif (block := self.current()) is not None:  # else the state of the process is in force
                generator.set_state(block.generator(device).get_state())
            else:
                cpu = device.type == "cpu"
                generator.set_state(torch.get_rng_state() if cpu else torch.cuda.get_rng_state(device))
        return self._generators[device]

    def states(self, device: torch.device) -> list[Tensor]:
        """States of the CPU's generator and of the device's, where that is another."""
        devices = [torch.device("cpu"), *([] if device.type == "cpu" else [device])]
        return [self.generator(name).get_state() for name in devices]

    def set_states(self, states: Sequence[Tensor], device: torch.device | None = None) -> None:
        """Take up what `states` gave."""
        for device_name, state in zip(("cpu", device), states, strict=False):
            self.generator(device_name).set_state(state)  # type: ignore[arg-type]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, with a generator of one's own where it draws."""
        kwargs = kwargs or {}
        if func is F.dropout or func is torch.dropout:
            return self._dropout(*args, **kwargs)
        if func in _DRAWS and kwargs.get("generator") is None:
            like = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
            usual = torch.get_default_device() if like is None else like.device
            device = torch.device(kwargs.get("device") or usual)
            if device.type != "meta":
                kwargs = {**kwargs, "generator": self.generator(device)}
        return func(*args, **kwargs)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool | None = None
    ) -> Tensor:
        # Torch's own takes no generator. On a CPU this draws the same numbers.
        if not (training if train is None else train) or p == 0.0 or not input.numel():
            return input
        kept = torch.empty_like(input).bernoulli_(1.0 - p, generator=self.generator(input.device))
        kept = kept.div_(1.0 - p) if p < 1.0 else kept
        return input.mul_(kept) if inplace else input * kept
