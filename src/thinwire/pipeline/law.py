"""How long a batch takes: the planner's law, and an event simulation of the operations that it is a law of.

Let a part need f_k seconds forward and b_k back (a replay included), and a message c_k seconds from part k to k + 1 and
d_k back. Parts i to j stand in one circle: a batch goes forward from i to j, an error gradient comes back, and part i
goes on. In the meantime it has begun m_i - m_j batches more. So a batch takes at least

    max over i <= j of (sum of f + b over i..j, and of c + d between them) / (1 + m_i - m_j)

seconds. Where each part executes its own list and waits for messages alone, it takes exactly that once queues are full.

A barrier after each batch sends messages too: :func:`events` charges them, as gloo sends them.

A link that is busy for r seconds with the messages of a batch, its bytes over its rate, is as a part that computes so
long: a batch takes at least r seconds too, however large the delays are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..errors import require
from .schedule import DSP, Schedule

__all__ = ["events", "plan", "tick"]

Busy = tuple[Sequence[float], Sequence[float]]
"""Of the seconds of messages ahead and back those in which the link is taken; the rest is latency."""


def tick(
    delays: Sequence[int],
    forward: Sequence[float],
    backward: Sequence[float],
    ahead: Sequence[float],
    back: Sequence[float],
    busy: Busy = ((), ()),
) -> float:
    """Seconds a batch by the law.

    ``delays`` are m; ``forward`` and ``backward`` seconds of each part; ``ahead[k]`` and ``back[k]`` seconds of a
    message from part k to k + 1, and of one from k + 1 to k: latency and bytes over rate. ``busy`` has the bytes over
    the rate alone; without it messages never wait for one another.
    """
    own = [f + b for f, b in zip(forward, backward, strict=True)]
    between = [c + d for c, d in zip(ahead, back, strict=True)]
    n = len(own)
    require(len(delays) == n and len(between) == n - 1, f"{len(delays)} delays, {n} parts, {len(between)} links")
    circles = (
        (sum(own[i : j + 1]) + sum(between[i:j])) / (1 + delays[i] - delays[j]) for i in range(n) for j in range(i, n)
    )
    return max(*circles, *busy[0], *busy[1], 0.0)


def events(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    ahead: Sequence[float],
    back: Sequence[float],
    batches: int = 200,
    busy: Busy = ((), ()),
) -> float:
    """Seconds a batch, as parts that execute a schedule's operations would take, over the second half of ``batches``.

    Seconds are those of a whole batch, of which a micro-batch takes its share. A message waits for those before it
    while the link is ``busy`` with them; without ``busy`` it never waits. Those of a barrier wait for the batch's
    messages on their link, and have no bytes: they take what is not ``busy`` of a message's seconds, and between parts
    that are no neighbours the longest of these.
    """
    parts, pieces = len(forward), schedule.pieces
    schedule.check(parts)
    links = {"forward": (ahead, busy[0] or [0.0] * len(ahead)), "backward": (back, busy[1] or [0.0] * len(back))}
    free: dict[tuple[str, int], float] = {}  # when a link, by direction, has sent all that it was given
    there: dict[tuple[str, int, int, int], float] = {}  # when a message to (part, batch, micro) has arrived
    clock = [0.0] * parts
    ops = [[op for n in range(batches) for op in schedule.tick(k, parts, n)] for k in range(parts)]
    at, ends, locked = [0] * parts, [0.0] * batches, [0] * parts
    entered = [0.0] * parts  # when each part was done with its last batch
    left: dict[int, list[float]] = {}  # when each part goes on after a barrier, by batch
    latency = {way: [c - r for c, r in zip(*links[way], strict=True)] for way in links}

    def arrival(k: int, to: int, when: float) -> float:
        """When a message of the barrier, of part ``k`` to another, has arrived that is ready then."""
        way, link = ("forward", k) if to > k else ("backward", to)
        near = abs(to - k) == 1
        late = latency[way][link] if near else max(latency["forward"] + latency["backward"])
        return max(when, free.get((way, to), 0.0) if near else 0.0) + late

    while any(a < len(o) for a, o in zip(at, ops, strict=True)):
        moved = False
        for k in range(parts):
            while at[k] < len(ops[k]):
                op = ops[k][at[k]]
                needs: tuple[str, int, int, int] | None = None
                if op.do == "forward" and k:
                    needs = ("forward", k, op.batch, op.micro)
                elif op.do in ("backward", "teach") and k < parts - 1:
                    needs = ("backward", k, op.batch, op.micro)
                if needs is not None and needs not in there:
                    break
                if schedule.barrier and op.do == "forward" and op.micro == 0 and op.batch:
                    if min(locked) < op.batch:
                        break
                    if op.batch not in left:
                        left[op.batch] = _past_barrier(entered, arrival)
                    clock[k] = max(clock[k], left[op.batch][k])
                if needs is not None:
                    clock[k] = max(clock[k], there[needs])
                clock[k] += {"forward": forward[k], "backward": backward[k], "guess": backward[k]}.get(
                    op.do, 0
                ) / pieces
                way, to = ("forward", k + 1) if op.do == "forward" else ("backward", k - 1)
                if op.do in ("forward", "backward", "guess") and 0 <= to < parts:
                    seconds, taken = (each[min(k, to)] / pieces for each in links[way])
                    starts = max(clock[k], free.get((way, to), 0.0))
                    free[way, to], there[way, to, op.batch, op.micro] = starts + taken, starts + seconds
                at[k], moved = at[k] + 1, True
                following = ops[k][at[k]] if at[k] < len(ops[k]) else None
                if following is None or (following.do == "forward" and following.micro == 0):
                    ends[locked[k]] = max(ends[locked[k]], clock[k])
                    entered[k], locked[k] = clock[k], locked[k] + 1
        assert moved, "parts that wait for one another"
    half = batches // 2
    return (ends[-1] - ends[half - 1]) / (batches - half)


def _past_barrier(entered: Sequence[float], arrival: Callable[[int, int, float], float]) -> list[float]:
    """When each part leaves a barrier, by when it enters.

    In gloo's, a dissemination barrier, part k tells part k + d and hears from part k - d, for d = 1, 2, 4, ... below
    the number of parts, around in a circle. It sends once it knows that the other one waits for it. Hensgen, Finkel,
    Manber, "Two algorithms for barrier synchronization", 1988.
    """
    n, d, now = len(entered), 1, list(entered)
    while d < n:
        asked = [arrival((k + d) % n, k, now[(k + d) % n]) for k in range(n)]  # that part k + d waits for part k
        sent = [max(now[k], asked[k]) for k in range(n)]
        now = [max(sent[k], arrival((k - d) % n, k, sent[(k - d) % n])) for k in range(n)]
        d *= 2
    return now


def plan(
    forward: Sequence[float],
    backward: Sequence[float],
    ahead: Sequence[float],
    back: Sequence[float],
    busy: Busy = ((), ()),
) -> DSP:
    """The DSP with the smallest delays whose links cost nothing: a batch takes what the slowest part needs.

    Where a link is ``busy`` for longer than that, a batch takes what the busiest link needs. ``backward`` has the
    replay of each part but the last in it. The delays are the least, part by part; what of a delay
    lies on the links forward, p, is one tick where there is one.
    """
    own = [f + b for f, b in zip(forward, backward, strict=True)]
    most, n = max(*own, *busy[0], *busy[1], 0.0), len(own)
    require(most > 0, "the parts take no time: there is nothing to plan")
    m = [0] * n
    for i in range(n - 2, -1, -1):
        total = own[i]
        for j in range(i + 1, n):
            total += own[j] + ahead[j - 1] + back[j - 1]
            # Rounded up, but for the last bits of a sum.
            m[i] = max(m[i], m[j] + math.ceil(total / most - 1e-9) - 1)
    return DSP((*(min(1, m[k] - m[k + 1]) for k in range(n - 1)), 0), tuple(m))
