"""Seeds of named streams of random numbers: what is drawn depends on its name, not on what was drawn before."""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *stream: object) -> int:
    """A 63-bit seed for one named stream of random numbers, such as ("negatives", batch, rank)."""
    # A hash, so that neighbouring numbers of a stream have unrelated seeds. 63 bits fit a signed integer.
    text = repr((seed, *stream)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
