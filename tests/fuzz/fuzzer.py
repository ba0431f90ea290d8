"""A mutation fuzzer that needs nothing but a seed: bounded, repeatable, run as ordinary tests.

``IOP_FUZZ_ITERATIONS`` sets how many inputs each target sees. A failure prints the input, which then belongs into the
corpus or a unit test. The same targets can be given to a coverage-guided fuzzer: they take bytes.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Sequence

ITERATIONS = int(os.environ.get("IOP_FUZZ_ITERATIONS", "3000"))
MAX_BYTES = 4096


def mutate(data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes], rng: random.Random) -> bytes:
    """One to four small changes: a byte, a cut, a repeat, a token, a piece of another seed."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(out))
        size = rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] = rng.randrange(256)
            case 1 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size] * rng.randint(1, 3)
            case 4:
                other = rng.choice(seeds)
                start = rng.randint(0, len(other))
                out[at:at] = other[start : start + size]
            case _:
                out[at:at] = rng.choice(tokens)
    return bytes(out[:MAX_BYTES])


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """``data`` in random pieces: sometimes single bytes, sometimes a few large ones, empty ones too."""
    if rng.random() < 0.2:
        return [data[i : i + 1] for i in range(len(data))]
    places = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(1, 8)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def fuzz(
    target: Callable[[list[bytes]], object], seeds: Sequence[bytes], tokens: Sequence[bytes], seed: int = 1
) -> int:
    """Invariant: ``target`` gives a result or a documented error as a value, and the same one for any cut.

    Mutants of mutants are kept for a while, so that several changes can add up. Returns the number of inputs.
    """
    rng = random.Random(seed)
    mutants = deque([*seeds], maxlen=200)
    for number in range(ITERATIONS):
        data = (
            seeds[number]
            if number < len(seeds)
            else mutate(rng.choice(rng.choice((seeds, mutants))), seeds, tokens, rng)
        )
        parts = cut(data, rng)
        try:
            whole, pieces = target([data]), target(parts)
            assert whole == pieces, f"whole {whole!r}, in pieces {pieces!r}"
        except BaseException as error:
            error.add_note(f"input {number} (seed {seed}): {data!r} cut as {[len(part) for part in parts]}")
            raise
        if rng.random() < 0.05:
            mutants.append(data)
    return ITERATIONS
