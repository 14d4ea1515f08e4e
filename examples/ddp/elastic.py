"""Data-parallel training whose processes may be killed, leave and join, on as many machines as you like.

    python examples/ddp/elastic.py --store /shared/run --number 0 --ranks 2
    python examples/ddp/elastic.py --store /shared/run --number 1 --ranks 2
    python examples/ddp/elastic.py --store /shared/run --number 7 --join

The third may be started at any time. Kill any of them (-9), and the others go on. Ask one to end (Ctrl-C or -TERM), and
it hands on what it owes first. ``--store`` is a file that all see; on machines without one take torch's TCPStore.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.data import load
from thinwire.ddp import SparseLoCo, compress
from thinwire.errors import RankLost

ROUND = 10  # steps


def muster(store: dist.Store, group: int, number: int, new: bool, expected: int | None, patience: float) -> list[int]:
    """The members of a group that is being formed, by their numbers in the order of ranks: newcomers are last.

    Whoever comes first waits for so many, or for ``patience`` seconds, and writes the list. Others are not in it.
    """
    ticket = store.add(f"{group}/tickets", 1)
    store.set(f"{group}/{ticket}", f"{int(new)} {number}")
    if ticket == 1:
        end = time.monotonic() + patience
        while time.monotonic() < end if expected is None else not store.check([f"{group}/{expected}"]):
            time.sleep(0.05)
        tickets = range(1, store.add(f"{group}/tickets", 0) + 1)
        rows = sorted(store.get(f"{group}/{n}").decode().split() for n in tickets)
        store.set(f"{group}/members", " ".join(member for _, member in rows))
    return [int(member) for member in store.get(f"{group}/members").decode().split()]


def wait_for_group(store: dist.Store, leaving: list[bool]) -> int:
    """A newcomer takes a ticket, and waits for the group that it is let into, or until it is asked to end."""
    ticket = store.add("waiting", 1)
    store.set(f"waiting/{ticket}", "")
    print(f"waiting to be let in by a training that goes on (ticket {ticket})", flush=True)
    while not store.check([f"open/{ticket}"]):
        if leaving:
            raise SystemExit("it was asked to end before it was let in")
        time.sleep(0.05)
    return int(store.get(f"open/{ticket}"))


def newcomers(store: dist.Store) -> range:
    """The tickets of those who wait."""
    first = last = int(store.get("opened")) if store.check(["opened"]) else 0
    while store.check([f"waiting/{last + 1}"]):
        last += 1
    return range(first + 1, last + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="a file that all processes see")
    parser.add_argument("--number", type=int, required=True, help="of this process; no other may have had it")
    parser.add_argument("--ranks", type=int, default=1, help="to begin with")
    parser.add_argument("--join", action="store_true", help="a training that has begun")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--patience", type=float, default=10.0, help="seconds to wait for others after a loss")
    o = parser.parse_args()
    if o.steps < 1:
        parser.error(f"--steps {o.steps}: one or more")

    leaving = list[bool]()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: leaving.append(True))
    store = dist.FileStore(o.store, -1)
    data = load("digits")
    inputs, targets = data.inputs.float().flatten(1) / 16, data.targets
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.002)
    draw = torch.Generator().manual_seed(o.number)  # every process has batches of its own
    loss = torch.tensor(float("nan"))  # of one that is let in at the end
    c, group, expected = None, 0, o.ranks  # the last: None where nobody knows how many will be left

    while True:
        if o.join:  # and whoever came too late for the others
            group, c, expected = wait_for_group(store, leaving), None, None
        members = muster(store, group, o.number, c is None, expected, o.patience)
        o.join = o.number not in members
        if o.join:
            continue
        rank, wait = members.index(o.number), datetime.timedelta(seconds=60)
        place = dist.PrefixStore(f"group {group}", store)
        dist.init_process_group("gloo", store=place, rank=rank, world_size=len(members), timeout=wait)
        model = DistributedDataParallel(module)
        old, c = c, compress(model, optimizer, SparseLoCo(ROUND))
        if group:
            c.regroup(old)
        print(f"step {c.step}: {len(members)} rank(s), {members}", flush=True)
        expected = None
        try:
            while c.step < o.steps:
                rows = torch.randint(len(inputs), (32,), generator=draw)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
                loss.backward()
                optimizer.step()
                if c.step % ROUND:
                    continue
                waiting = newcomers(store) if rank == 0 else ()
                change = torch.tensor(len(waiting) + len(leaving))
                dist.all_reduce(change)
                if change:
                    for ticket in waiting:
                        store.set(f"open/{ticket}", str(group + 1))
                        store.set("opened", str(ticket))
                    c.disband(leaving=bool(leaving))
                    break
            else:
                leaving.append(True)
        except (RankLost, RuntimeError) as error:  # torch's own, of all_reduce, is a RuntimeError
            print(f"step {c.step}: {str(error).splitlines()[0]}", flush=True)
            c.remove()
        dist.destroy_process_group()
        model = None  # it holds the group, whose connections end with it: then others that wait for this rank know
        gc.collect()
        if leaving:
            print(f"step {c.step}: loss {loss.item():.3f}, {c.ledger.summary()}", flush=True)
            return
        group += 1


if __name__ == "__main__":
    main()
