"""The Epileptor, a neural-mass model of seizures, for a batch of seizures on coupled nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEP = 0.1
"""Model time per step; Heun's method is stable up to about 0.15."""
DURATION = 0.25
"""Model time from the first discharge to the last for each unit of the slow time constant τ0, about; tests hold it."""
ONSET = 0.06
"""Model time before the first discharge for each unit of τ0, about."""
_I1, _I2, _TAU2, _GAMMA = 3.1, 0.45, 10.0, 0.01


def epileptor(
    x0: NDArray[np.float64],
    tau0: NDArray[np.float64],
    num_steps: int,
    *,
    coupling: float = 2.0,
    noise: float = 0.01,
    z: float = 2.98,
    generator: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Integrate seizures from just before their onset.

    Equations of Jirsa et al., "On the nature of seizure dynamics" (Brain 137, 2014), with the permittivity coupling of
    Proix et al. (Brain 140, 2017): nodes of one seizure pull at each other's slow variable. τ2, I1, I2 and γ are the
    paper's. Heun's method for the two fast subsystems, Euler's for the slow variable and the low-pass g; white noise on
    the second subsystem makes it spike.

    Parameters
    ----------
    x0 : array, shape (S, K)
        Excitability of the K nodes of S seizures; above about −2.06 a node seizes by itself.
    tau0 : array, shape (S,)
        Slow time constant; sets the seizure's length, see `DURATION`.
    num_steps : int
    coupling : float
        Strength of the permittivity coupling; 2 recruits nodes with x0 down to −2.5.
    noise : float
    z : float
        Slow variable at the start; seizures begin where it has fallen to about 2.9.
    generator : numpy.random.Generator

    Returns
    -------
    potential : ndarray of float32, shape (num_steps, S, K)
        x2 − x1, the field potential of the paper.
    activity : ndarray of float32, shape (num_steps, S, K)
        x1 of the fast subsystem; above about −1 during discharges only.
    """
    shape = x0.shape
    state = np.stack([np.full(shape, -1.6), np.full(shape, -11.8), np.full(shape, -0.8), np.zeros(shape)])
    slow, g = np.full(shape, z), np.zeros(shape)
    rate = STEP / tau0[:, None]
    potential, activity = np.empty((num_steps, *shape), np.float32), np.empty((num_steps, *shape), np.float32)
    first, second, middle = np.empty_like(state), np.empty_like(state), np.empty_like(state)
    work, mask = np.empty((3, *shape)), np.empty(shape, bool)
    kicks = np.empty((0, *shape))
    for step in range(num_steps):
        if step % 4096 == 0:
            kicks = generator.normal(0.0, noise * np.sqrt(STEP), (4096, *shape))
        gap = 0.6 * (slow - 4.0) ** 2
        drive = 0.002 * g - 0.3 * (slow - 3.5) + _I2
        lift = _I1 - slow
        _derivatives(state, gap, drive, lift, first, work, mask)
        np.multiply(first, STEP, out=middle)
        middle += state
        _derivatives(middle, gap, drive, lift, second, work, mask)
        x1 = state[0]
        slow += rate * (4.0 * (x1 - x0) - slow - coupling * (x1.mean(1, keepdims=True) - x1))
        g += STEP * (x1 - _GAMMA * g)
        first += second
        first *= STEP / 2
        state += first
        state[2] += kicks[step % 4096]
        np.subtract(state[2], state[0], out=potential[step], casting="same_kind")
        activity[step] = state[0]
    return potential, activity


def _derivatives(
    state: NDArray[np.float64],
    gap: NDArray[np.float64],
    drive: NDArray[np.float64],
    lift: NDArray[np.float64],
    out: NDArray[np.float64],
    work: NDArray[np.float64],
    mask: NDArray[np.bool_],
) -> None:
    """Right-hand sides of x1, y1, x2, y2 into `out`; the slow terms are constant within a step."""
    x1, y1, x2, y2 = state
    dx1, dy1, dx2, dy2 = out
    square, factor, other = work
    np.multiply(x1, x1, out=square)
    # f1 = x1·(x1² − 3x1) below zero, x1·(x2 − 0.6 (z − 4)²) above
    np.subtract(x2, gap, out=factor)
    np.multiply(x1, 3.0, out=other)
    np.subtract(square, other, out=other)
    np.less(x1, 0.0, out=mask)
    np.copyto(factor, other, where=mask)
    np.multiply(factor, x1, out=factor)
    np.subtract(y1, factor, out=dx1)
    dx1 += lift
    np.multiply(square, -5.0, out=dy1)
    dy1 -= y1
    dy1 += 1.0
    np.multiply(x2, x2, out=square)
    np.subtract(1.0, square, out=square)
    np.multiply(square, x2, out=dx2)
    dx2 -= y2
    dx2 += drive
    np.add(x2, 0.25, out=other)
    np.maximum(other, 0.0, out=other)
    np.multiply(other, 6.0, out=other)
    np.subtract(other, y2, out=dy2)
    dy2 /= _TAU2


def discharges(activity: NDArray[np.float32]) -> tuple[int, int]:
    """First and last step at which any node of one seizure discharges; `activity` has shape (num_steps, K).

    After its last discharge a node rests at a depolarised level and then falls back; neither counts.

    Raises
    ------
    ValueError
        No node discharges.
    """
    onsets, offsets = [], []
    for x1 in activity.T:
        if not (x1 > 0).any():
            continue
        onset = int(np.argmax(x1 > 0))
        back = x1[onset:] < -1.08
        fall = onset + int(np.argmax(back)) if back.any() else len(x1)
        fast = np.flatnonzero(np.abs(np.diff(x1[onset : max(fall - 200, onset + 2)])) > 0.02)
        onsets.append(onset)
        offsets.append(onset + int(fast[-1]) + 1 if len(fast) else fall)
    if not onsets:
        raise ValueError("no node seizes: raise x0, or integrate for longer")
    return min(onsets), max(offsets)
