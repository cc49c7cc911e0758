"""The Epileptor, a neural-mass model of seizures, for a batch of seizures on coupled nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Model time per step.
STEP = 0.1
# Steps between updates of the slow variables.
SLOW_STEPS = 4
# Model time from the first discharge to the last for each unit of the slow time constant τ0, about; tests hold it.
DURATION = 0.27
# Model time before the first discharge for each unit of τ0, about.
ONSET = 0.06
# Strength of the permittivity coupling; 2 recruits nodes with x0 down to −2.5.
_COUPLING = 2.0
_I1, _I2, _TAU2, _GAMMA = 3.1, 0.45, 10.0, 0.01


def epileptor(
    x0: NDArray[np.float64],
    tau0: NDArray[np.float64],
    num_steps: int,
    *,
    noise: float = 0.01,
    z: float = 2.93,
    generator: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Integrate seizures from just before their onset.

    Equations of Jirsa et al., "On the nature of seizure dynamics" (Brain 137, 2014), with the permittivity coupling of
    Proix et al. (Brain 140, 2017): nodes of one seizure pull at each other's slow variable. τ2, I1, I2 and γ are the
    paper's. Euler's method, implicit in the stiff x1 (one Newton step), with white noise on the second subsystem, which
    makes it spike; the slow variable and the low-pass g take larger steps.

    Parameters
    ----------
    x0 : array, shape (S, K)
        Excitability of the K nodes of S seizures; above about −2.06 a node seizes by itself.
    tau0 : array, shape (S,)
        Slow time constant; sets the seizure's length, see `DURATION`.
    z : float
        Slow variable at the start; seizures begin where it has fallen to about 2.9.

    Returns
    -------
    potential : ndarray of float32, shape (num_steps, S, K)
        x2 − x1, the field potential of the paper.
    activity : ndarray of float32, shape (num_steps, S, K)
        x1 of the fast subsystem; above about −1 during discharges only.
    """
    potential, activity = np.empty((2, num_steps, *x0.shape), np.float32)
    blocks = -(-num_steps // 4096)
    kicks = np.concatenate([generator.normal(0.0, noise * np.sqrt(STEP), (4096, *x0.shape)) for _ in range(blocks)])
    # Seizures have a few nodes, for which plain numbers are several times as fast as arrays of a few entries.
    for seizure, slow_time in enumerate(tau0.tolist()):
        pushes = kicks[:num_steps, seizure].T.tolist()
        nodes = [_Node(excitability, z) for excitability in x0[seizure].tolist()]
        rate = SLOW_STEPS * STEP / slow_time
        for start in range(0, num_steps, SLOW_STEPS):
            mean = sum(node.x1 for node in nodes) / len(nodes)
            for node, push in zip(nodes, pushes, strict=True):
                node.move_slow(rate, _COUPLING * (mean - node.x1))
                node.move_fast(push[start : start + SLOW_STEPS])
        potential[:, seizure] = np.transpose([node.potential for node in nodes])
        activity[:, seizure] = np.transpose([node.activity for node in nodes])
    return potential, activity


class _Node:
    """State and past of one node; the methods are the paper's equations in Euler's steps."""

    def __init__(self, excitability: float, slow: float) -> None:
        self.x0, self.slow, self.g = excitability, slow, 0.0
        self.x1, self.y1, self.x2, self.y2 = -1.6, -11.8, -0.8, 0.0
        self.potential: list[float] = []
        self.activity: list[float] = []

    def move_slow(self, rate: float, pull: float) -> None:
        """Update the slow variable, which other nodes pull at, and the low-pass."""
        self.slow += rate * (4.0 * (self.x1 - self.x0) - self.slow - pull)
        self.g += SLOW_STEPS * STEP * (self.x1 - _GAMMA * self.g)

    def move_fast(self, pushes: Sequence[float]) -> None:
        """Take a step for each push of the noise."""
        x1, y1, x2, y2 = self.x1, self.y1, self.x2, self.y2
        gap = self.slow - 4.0
        gap = 0.6 * (gap * gap)
        drive = 0.002 * self.g - 0.3 * (self.slow - 3.5) + _I2
        lift = _I1 - self.slow
        for push in pushes:
            square = x1 * x1
            # f1 = x1·(x1² − 3x1) below zero, with slope 3x1² − 6x1; else x1·(x2 − 0.6 (z − 4)²), the factor as slope
            if x1 < 0.0:
                factor = square - 3.0 * x1
                slope = factor + factor + square
            else:
                factor = x2 - gap
                slope = max(factor, 0.0)
            next_x1 = x1 + (y1 - factor * x1 + lift) * STEP / (slope * STEP + 1.0)
            # y1' = 1 − 5x1² − y1
            y1 += (square * -5.0 - y1 + 1.0) * STEP
            # x2' = x2 − x2³ − y2 + drive, y2' = (6 (x2 + 0.25)⁺ − y2) / τ2
            next_x2 = x2 + ((1.0 - x2 * x2) * x2 - y2 + drive) * STEP + push
            y2 += (max(x2 + 0.25, 0.0) * 6.0 - y2) * (STEP / _TAU2)
            x1, x2 = next_x1, next_x2
            self.potential.append(x2 - x1)
            self.activity.append(x1)
        self.x1, self.y1, self.x2, self.y2 = x1, y1, x2, y2


def discharges(activity: NDArray[np.float32]) -> tuple[int, int]:
    """First and last step at which any node of one seizure discharges; `activity` has shape (num_steps, K).

    After its last discharge a node rests at a depolarised level and then falls back; neither counts.
    """
    onsets, offsets = [], []
    for x1 in activity.T:
        # A node that is not recruited never discharges.
        if not (x1 > 0).any():
            continue
        onset = int(np.argmax(x1 > 0))
        back = x1[onset:] < -1.08
        fall = onset + int(np.argmax(back)) if back.any() else len(x1)
        fast = np.flatnonzero(np.abs(np.diff(x1[onset : max(fall - 200, onset + 2)])) > 0.02)
        onsets.append(onset)
        offsets.append(onset + int(fast[-1]) + 1 if len(fast) else fall)
    if not onsets:
        raise ValueError("no node had a seizure: raise x0, or integrate for longer")
    return min(onsets), max(offsets)
