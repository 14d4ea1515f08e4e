"""Random bits by counter: entry ``i`` of a stream is a function of the seed and of ``i`` alone.

So any part can be drawn anywhere, in any order, by any number of threads, and both ends agree.
32 bits come from a mix of two multiplications and three shifts (constants of C. Wellons' search for
unbiased 32-bit mixes, "hash-prospector", 2018-2022); a key of 64 bits enters at two places.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from ..errors import require

MOST = 1 << 32  # entries in a stream
CHUNK = 1 << 16  # entries a reference draws at a time: its arrays stay small
LOW32, LOW64 = (1 << 32) - 1, (1 << 64) - 1


def keys(seed: int, count: int) -> list[int]:
    """``count`` keys of 64 bits for one seed (SplitMix64, Steele, Lea, Flood, OOPSLA 2014)."""
    keys = []
    for number in range(1, count + 1):
        z = (seed + number * 0x9E3779B97F4A7C15) & LOW64
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & LOW64
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & LOW64
        keys.append(z ^ z >> 31)
    return keys


def bits(start: int, stop: int, key: int, device: torch.device | str = "cpu") -> Int64[Tensor, " n"]:
    """Entries ``start`` to ``stop`` of a key's stream: 32 random bits each, as numbers from 0 to 2^32 - 1."""
    require(stop <= MOST, f"a random stream has {MOST} entries, not {stop}: split the tensor")
    x = torch.arange(start, stop, device=device)
    x = (x + (key & LOW32)) & LOW32
    x = ((x ^ x >> 16) * 0x21F0AAAD) & LOW32
    x ^= key >> 32
    x = ((x ^ x >> 15) * 0x735A2D97) & LOW32
    return x ^ x >> 15
