"""The Epileptor, a neural-mass model of seizures, for a batch of seizures on coupled nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEP = 0.1
"""Model time per step."""
SLOW_STEPS = 4
"""Steps between updates of the slow variables."""
DURATION = 0.27
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
    x1, y1, x2, y2 = np.full(shape, -1.6), np.full(shape, -11.8), np.full(shape, -0.8), np.zeros(shape)
    slow, g = np.full(shape, z), np.zeros(shape)
    rate = SLOW_STEPS * STEP / tau0[:, None]
    potential, activity = np.empty((num_steps, *shape), np.float32), np.empty((num_steps, *shape), np.float32)
    square, triple, factor, slope, change = np.empty((5, *shape))
    negative = np.empty(shape, bool)
    for step in range(num_steps):
        if step % SLOW_STEPS == 0:
            if step % 4096 == 0:
                kicks = generator.normal(0.0, noise * np.sqrt(STEP), (4096, *shape))
            slow += rate * (4.0 * (x1 - x0) - slow - coupling * (x1.mean(1, keepdims=True) - x1))
            g += SLOW_STEPS * STEP * (x1 - _GAMMA * g)
            gap = 0.6 * (slow - 4.0) ** 2
            drive = 0.002 * g - 0.3 * (slow - 3.5) + _I2
            lift = _I1 - slow
        # f1 = x1·(x1² − 3x1) below zero, x1·(x2 − 0.6 (z − 4)²) above; its slope there is 3x1² − 6x1, else the factor
        np.multiply(x1, x1, out=square)
        np.multiply(x1, 3.0, out=triple)
        np.subtract(x2, gap, out=factor)
        np.maximum(factor, 0.0, out=slope)
        np.subtract(square, triple, out=change)
        np.less(x1, 0.0, out=negative)
        np.copyto(factor, change, where=negative)
        np.add(change, change, out=change)
        np.add(change, square, out=change)
        np.copyto(slope, change, where=negative)
        slope *= STEP
        slope += 1.0
        factor *= x1
        np.subtract(y1, factor, out=change)
        change += lift
        change *= STEP
        change /= slope
        x1 += change
        # y1' = 1 − 5x1² − y1
        square *= -5.0
        square -= y1
        square += 1.0
        square *= STEP
        y1 += square
        # x2' = x2 − x2³ − y2 + drive, y2' = (6 (x2 + 0.25)⁺ − y2) / τ2
        np.multiply(x2, x2, out=square)
        np.subtract(1.0, square, out=square)
        square *= x2
        square -= y2
        square += drive
        square *= STEP
        np.add(x2, 0.25, out=factor)
        np.maximum(factor, 0.0, out=factor)
        factor *= 6.0
        factor -= y2
        factor *= STEP / _TAU2
        y2 += factor
        x2 += square
        x2 += kicks[step % 4096]
        np.subtract(x2, x1, out=potential[step], casting="same_kind")
        activity[step] = x1
    return potential, activity


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
        raise ValueError("no node had a seizure: raise x0, or integrate for longer")
    return min(onsets), max(offsets)
