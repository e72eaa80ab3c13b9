"""Damage to the bytes of a file, as disks, networks and editors do it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Damage = Callable[[Random, bytes], bytes]


def flip(random: Random, data: bytes) -> bytes:
    """One bit, or a few."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(random: Random, data: bytes) -> bytes:
    """The end is missing: a little, any part, or all."""
    keep = [random.randrange(len(data) + 1), max(len(data) - random.randint(1, 600), 0), 0]
    return data[: random.choices(keep, [6, 5, 1])[0]]


def zero(random: Random, data: bytes) -> bytes:
    """A range of zeros, often a whole sector."""
    size = random.choice([1, 4, 64, 512, 512, 4096])
    at = random.randrange(len(data) + 1)
    at = at // 512 * 512 if random.random() < 0.5 else at
    end = min(at + size, len(data))
    return data[:at] + bytes(end - at) + data[end:]


def append(random: Random, data: bytes) -> bytes:
    """Something after the end."""
    size = random.choice([1, 8, 512, 5000])
    return data + random.choice([bytes(size), random.randbytes(size), data[:size]])


def lose(random: Random, data: bytes) -> bytes:
    """A part in the middle is missing."""
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.choice([1, 2, 64, 512]) :]


def repeat(random: Random, data: bytes) -> bytes:
    """A part stands there twice."""
    at = random.randrange(len(data) + 1)
    size = random.choice([1, 16, 512, 1024])
    return data[: at + size] + data[at:]


def overwrite(random: Random, data: bytes) -> bytes:
    """A range holds anything."""
    at = random.randrange(len(data) + 1)
    end = min(at + random.choice([1, 4, 8, 64, 512]), len(data))
    return data[:at] + random.randbytes(end - at) + data[end:]


def large_number(random: Random, data: bytes) -> bytes:
    """Where a size may stand, an absurd one."""
    number = random.choice([0, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1])
    width, order = random.choice([4, 8]), random.choice(["little", "big"])
    at = random.randrange(min(len(data), 400) + 1)
    written = (number % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]
    return data[:at] + written + data[at + width :]


KINDS: tuple[Damage, ...] = (
    flip,
    flip,
    flip,
    cut,
    zero,
    append,
    lose,
    repeat,
    overwrite,
    large_number,
)


def damaged(random: Random, data: bytes) -> tuple[bytes, str]:
    """Other bytes, and what was done to them; some damage may leave bytes as they were."""
    how = random.choice(KINDS)
    return how(random, data), how.__name__
