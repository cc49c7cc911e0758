"""Mutations of bytes: flipped bits, cuts, blocks that are doubled, moved or gone, and numbers that cannot be."""

import random
import re
import struct
from collections.abc import Callable

EXTREMES = (0, 1, -1, 127, 255, 32767, 65535, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, -(2**63), 10**10)
NUMBERS = (b"0", b"-1", b"99999999", b"1e-300", b"1e300", b"nan", b"inf", b"-inf")
TEXTS = (*NUMBERS, b"", b"n/a", b"\xff\xfe", b'"', b"[" * 50)


def _place(random: random.Random, content: bytearray) -> int:
    """Half of all places lie in the first 4096 bytes, where headers are."""
    limit = min(len(content), 4096) if random.random() < 0.5 else len(content)
    return random.randrange(max(limit, 1))


def flip_bits(random: random.Random, content: bytearray) -> None:
    """One to eight bits."""
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        place = _place(random, content)
        content[place] ^= 1 << random.randrange(8)


def set_bytes(random: random.Random, content: bytearray) -> None:
    """A run of one value or of noise."""
    place, length = _place(random, content), random.choice((1, 2, 4, 16, 200))
    run = random.randbytes(length) if random.random() < 0.5 else bytes([random.choice((0, 0x20, 0x39, 0xFF))]) * length
    content[place : place + length] = run[: len(content) - place]


def cut(random: random.Random, content: bytearray) -> None:
    """The end is missing."""
    del content[_place(random, content) :]


def drop_block(random: random.Random, content: bytearray) -> None:
    """Bytes in the middle are missing."""
    place = _place(random, content)
    del content[place : place + random.choice((1, 3, 16, 512, 5000))]


def repeat_block(random: random.Random, content: bytearray) -> None:
    """Bytes stand twice."""
    place, length = _place(random, content), random.choice((1, 8, 256, 5000))
    content[place:place] = content[place : place + length]


def move_block(random: random.Random, content: bytearray) -> None:
    """Bytes stand elsewhere."""
    place, length = _place(random, content), random.choice((4, 16, 256, 2000))
    block = content[place : place + length]
    del content[place : place + length]
    target = _place(random, content)
    content[target:target] = block


def set_number(random: random.Random, content: bytearray) -> None:
    """A binary number that is very large, negative, infinite or not a number."""
    form = random.choice(("<h", "<i", ">i", "<q", ">q", "<f", "<d", ">f", ">d"))
    if form[1] in "fd":
        packed = struct.pack(form, random.choice((float("nan"), float("inf"), -1e30, 1e-40, 1e15)))
    else:
        size = struct.calcsize(form)
        packed = (random.choice(EXTREMES) & ((1 << 8 * size) - 1)).to_bytes(size, "little" if form[0] == "<" else "big")
    place = _place(random, content)
    if random.random() < 0.7:
        place -= place % len(packed)
    content[place : place + len(packed)] = packed[: max(len(content) - place, 0)]


def set_text_number(random: random.Random, content: bytearray) -> None:
    """A number in text becomes another, in its place or longer than it was."""
    numbers = [match.span() for match in re.finditer(rb"[-+]?\d[\d.e+-]*", bytes(content[:20_000]))]
    if not numbers:
        return flip_bits(random, content)
    start, stop = random.choice(numbers)
    text = random.choice(TEXTS)
    if random.random() < 0.6:
        text = text[: stop - start].ljust(stop - start)
    content[start:stop] = text
    return None


def set_word(random: random.Random, content: bytearray) -> None:
    """A word in text becomes another of the file, or nothing."""
    words = [match.span() for match in re.finditer(rb"[A-Za-z_][A-Za-z_./-]+", bytes(content[:20_000]))]
    if not words:
        return flip_bits(random, content)
    start, stop = random.choice(words)
    first, last = random.choice(words)
    content[start:stop] = random.choice((b"", bytes(content[first:last]), b"null", b"../../x", b"x" * 300, b"=cmd"))
    return None


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    flip_bits, set_bytes, cut, drop_block, repeat_block, move_block, set_number, set_text_number, set_word,
)  # fmt: skip


def mutated(content: bytes, seed: int) -> bytes:
    """One to three mutations, the same for the same seed."""
    generator = random.Random(seed)
    changed = bytearray(content)
    for _ in range(generator.choice((1, 1, 2, 3))):
        if changed:
            generator.choice(MUTATIONS)(generator, changed)
    return bytes(changed)
