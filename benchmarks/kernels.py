"""What the kernels cost, as ratios to a torch copy of the same dense 32-bit floats on as many threads in the same run.

100 million floats (400 MB), but for the Hadamard transforms of 2^24 and 2^27, the count sketch of 10 million floats in
5 x 2^20, and ``dumps`` of 25 million (100 MB). A kernel and its copy take turns; both figures are medians. Results
that a caller can reuse (bits, levels, floats) are written into memory that was used before, as the copy's is;
positions, sketches and Fastfood's vector are allocated each time. A worker of OpenMP waits asleep here: awake, as torch
leaves it by default for some milliseconds after each operator, it takes a core from whatever comes next. The first
eight messages of ``dumps`` are not timed: a virtual machine may have to ask its host for fresh memory.

Then every link on an update of the size of ResNet-18 (11.2 million entries in 62 layers): encoding is ``send`` and
``dumps``, decoding ``loads`` and ``recv``, both together in copies of the update; and the most memory that ``send`` and
``recv`` take beside what they are given, in vectors of the update (44.7 MB), what they return included (Linux alone
tells). Those that take long are timed fewer times. The settings are the ``measured`` of tests/tables.py.
The table is Markdown, for docs/measured/links.md.

    python benchmarks/kernels.py [--rounds 7] [--threads 2] [--links [--only STC]] [--json] [--into FILE]

Needs 2.5 GB. Other work on the machine makes every figure larger, also the ratios: the load is printed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded

import torch
from torch import Size, Tensor

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import tables
import thinwire as tw
from thinwire.kernels import fastfood, native, quantize, select, signs, sketch
from thinwire.kernels.hadamard import hadamard_
from thinwire.wire import dumps, loads

SHARE = 100
BARS = {
    "topk": 4.0,
    "largest": 4.0,
    "threshold": 2.5,
    "sign_pack": 0.7,
    "sign_unpack": 1.0,
    "quantize8": 1.2,
    "fwht_2_24": 5.5,
    "fwht_2_27": 5.5,
    "fastfood": 13.0,
    "count_sketch": 35.0,
    "dumps": 6.0,
}
LINKS = [text for row in tables.LINKS for text in row.measured]
LONG = 3.0  # seconds, after which a link is not timed again
MMAP_THRESHOLD = -3  # malloc.h


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def against_copy(x: Tensor, y: Tensor, work: Callable[[], object], rounds: int, after=lambda: None) -> dict[str, float]:
    """Medians of the kernel and of the copy of ``x`` to ``y``, taken in turn; the first of each is left out."""
    copies, works = [], []
    for _ in range(rounds + 1):
        copies.append(seconds(lambda: y.copy_(x)))
        works.append(seconds(work))
        after()
    copy, own = statistics.median(copies[1:]), statistics.median(works[1:])
    return {"ratio": own / copy, "ms": own * 1e3, "copy_ms": copy * 1e3}


def kernels(rounds: int, shrink: int = 0) -> dict[str, dict[str, float]]:
    """Every kernel; ``shrink`` halves the sizes so many times."""
    N, DIM = 100_000_000 >> shrink, 16_384 >> shrink // 2
    g = torch.Generator().manual_seed(0)
    whole, other = torch.randn(1 << 27 - shrink, generator=g), torch.zeros(1 << 27 - shrink)
    x, y = whole[:N], other[:N]
    bits, levels = torch.zeros((N + 7) // 8, dtype=torch.uint8), torch.zeros(N, dtype=torch.uint8)
    signs.pack_signs(x, out=bits)
    few = torch.randn(DIM, generator=g)
    found = {}

    def run(name: str, work: Callable[[], object], n: int = N, after: Callable[[], object] = lambda: None) -> None:
        found[name] = against_copy(whole[:n], other[:n], work, rounds, after)
        if name in BARS:
            found[name]["bar"] = BARS[name]

    def threshold() -> Tensor:
        return x.index_select(0, select.above(x, select.sample_threshold(x, N // SHARE, g)))

    def transform(n: int) -> None:
        run(f"fwht_2_{n.bit_length() - 1}", lambda: hadamard_(whole[:n]), n, lambda: whole[:n].mul_(n**-0.5))

    run("topk", lambda: select.top_k(x, N // SHARE))
    run("largest", lambda: select.largest(x, N // SHARE))
    run("threshold", threshold)
    run("sign_pack", lambda: signs.pack_signs(x, out=bits))
    run("sign_unpack", lambda: signs.unpack_signs(bits, N, 0.5, out=y))
    run("mean_magnitude", lambda: signs.mean_magnitude(x))
    run("quantize8", lambda: quantize.quantize(x, 4.0, 127, 8, 1, out=levels))
    run("dequantize8", lambda: quantize.dequantize(levels, N, 4.0, 127, 8, out=y))
    run("quantize1", lambda: quantize.quantize(x, 4.0, 1, 1, 1, out=bits))
    transform(1 << 24 - shrink)
    transform(1 << 27 - shrink)
    run("fastfood", lambda: fastfood.fastfood(few, N, 1))
    run("fastfood_transpose", lambda: fastfood.fastfood_transpose(x, DIM, 1))
    ten, cols = N // 10, 1 << 20 - shrink
    made = sketch.count_sketch(x[:ten], 5, cols, 1)
    run("count_sketch", lambda: sketch.count_sketch(x[:ten], 5, cols, 1), ten)
    run("heavy", lambda: sketch.heavy(made, ten, ten // 100, 1), ten)
    quarter = N // 4
    data = dumps(x[:quarter])
    for _ in range(8):
        dumps(x[:quarter])
    run("dumps", lambda: dumps(x[:quarter]), quarter)
    run("loads", lambda: loads(data), quarter)
    run("loads_unchecked", lambda: loads(data, finite=False), quarter)
    got = loads(data)
    first = torch.frombuffer(data, dtype=torch.uint8).data_ptr()
    assert first <= got.data_ptr() < first + len(data), "loads has copied"
    return found


def resnet18(narrower: int = 1) -> tw.Layout:
    """Ten classes: 11,181,642 trainable entries; fewer with layers so many times narrower."""
    before, *widths = (width // narrower for width in (64, 64, 128, 256, 512))
    first = before
    shapes: dict[str, tuple[int, ...]] = {"conv1": (first, 3, 7, 7), "bn1.weight": (first,), "bn1.bias": (first,)}
    for stage, width in enumerate(widths):
        for block in range(2):
            name = f"layer{stage + 1}.{block}"
            convs = [("conv1", (width, before, 3, 3)), ("conv2", (width, width, 3, 3))]
            if before != width:
                convs.append(("downsample", (width, before, 1, 1)))
            for conv, shape in convs:
                shapes |= {f"{name}.{conv}": shape, f"{name}.{conv}.bn.w": (width,), f"{name}.{conv}.bn.b": (width,)}
            before = width
    shapes |= {"fc.weight": (10, before), "fc.bias": (10,)}
    return tw.Layout(tuple(shapes), tuple(map(Size, shapes.values())))


def two(layout: tw.Layout) -> list[tw.Params]:
    g = torch.Generator().manual_seed(1)
    return [tw.Params(layout, 0.01 * torch.randn(layout.size, generator=g)) for _ in range(2)]


def asked(only: list[str] | None) -> list[str]:
    """The links with one of these in their expression; None: all."""
    return [text for text in LINKS if only is None or any(part in text for part in only)]


def links(rounds: int, narrower: int = 1, only: list[str] | None = None) -> dict[str, dict[str, float]]:
    layout = resnet18(narrower)
    updates = two(layout)
    target = torch.empty(layout.size)
    found = {}
    for text in asked(only):
        link = tw.parse(text)
        tx, rx = link.open(updates[0].zeros())
        encodings, decodings, copies, began = [], [], [], time.perf_counter()
        while len(copies) <= rounds and (len(copies) < 2 or time.perf_counter() - began < LONG):
            t = len(copies)
            x, key = updates[t % 2], tw.Key(0, t, 0, "up/update")
            copies.append(seconds(lambda x=x: target.copy_(x.flat)))
            start = time.perf_counter()
            packet, seen, tx = link.send(x, tx, key)
            data = dumps(packet)
            middle = time.perf_counter()
            got, rx = link.recv(loads(data), layout, rx, key)
            decodings.append(time.perf_counter() - middle)
            encodings.append(middle - start)
        assert got.flat.equal(seen.flat)
        encode, decode, copy = (statistics.median(v[1:]) for v in (encodings, decodings, copies))
        found[text] = {
            "bytes": len(data),
            "encode_ms": encode * 1e3,
            "decode_ms": decode * 1e3,
            "ratio": (encode + decode) / copy,
        }
    return found


def memory(narrower: int = 1, only: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Of every link's second round. For a process of its own: what was there before would be filled first."""
    libc = ctypes.CDLL(None)
    libc.mallopt(MMAP_THRESHOLD, 1 << 16)  # whatever is larger goes back to the system when it is freed
    layout, found = resnet18(narrower), {}
    first, second = two(layout)

    def most(work: Callable[[], object]) -> tuple[object, float]:
        """What ``work`` returns, and the most vectors it had at a time beside those that were there."""
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = status("VmRSS")
        made = work()
        return made, (status("VmHWM") - before) / (4 * layout.size)

    for text in asked(only):
        link = tw.parse(text)
        keys = [tw.Key(0, t, 0, "up/update") for t in range(2)]
        tx, rx = link.open(first.zeros())
        packet, _, tx = link.send(first, tx, keys[0])
        _, rx = link.recv(loads(dumps(packet)), layout, rx, keys[0])
        del packet, _
        sent, sending = most(lambda link=link, tx=tx, key=keys[1]: link.send(second, tx, key))
        packet = loads(dumps(sent[0]))
        del sent, tx
        _, receiving = most(lambda link=link, packet=packet, rx=rx, key=keys[1]: link.recv(packet, layout, rx, key))
        del packet, rx, _
        found[text] = {"send_vectors": round(sending, 2), "recv_vectors": round(receiving, 2)}
    return found


def status(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024


def links_and_memory(rounds: int, chosen: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Of every link the bytes and times, and the memory where the system tells."""
    table = links(rounds, 16 if chosen.tiny else 1, chosen.only)
    if os.access("/proc/self/clear_refs", os.W_OK):
        command = [sys.executable, __file__, "--memory", "--threads", str(chosen.threads), *["--tiny"] * chosen.tiny]
        command += [word for part in chosen.only or () for word in ("--only", part)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for name, vectors in json.loads(done.stdout).items():
            table[name] |= vectors
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one object last")
    parser.add_argument("--links", action="store_true", help="only the links")
    parser.add_argument("--only", action="append", help="with --links: those with this in their expression; repeatable")
    parser.add_argument("--tiny", action="store_true", help="the smallest size: that it runs, not how fast")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    narrower = 16 if chosen.tiny else 1
    if chosen.memory:
        print(json.dumps(memory(narrower, chosen.only)))
        return
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    level = native._level()

    def kept(part: str, work: Callable[[], dict[str, dict[str, float]]]) -> dict:
        key = {"benchmark": "kernels", "part": part, "rounds": chosen.rounds, "threads": chosen.threads}
        key |= {"kernels": level} | ({"tiny": True} if chosen.tiny else {})
        key |= {"only": chosen.only} if chosen.only else {}
        return record.measured(chosen.into, key, lambda: {"found": work(), "order": LINKS}, "numpy", "zstandard")

    print(f"kernels: {level}, {chosen.threads} threads, load of the machine before: {os.getloadavg()[0]:.1f}")
    lines = {} if chosen.links else {"kernels": kept("kernels", lambda: kernels(chosen.rounds, 10 * chosen.tiny))}
    found = {} if chosen.links else lines["kernels"]["found"]
    if found:
        print(f"{'':20}{'ratio':>8}{'bar':>7}{'ms':>10}{'copy ms':>10}")
    for name, of in found.items():
        bar = f"{of['bar']:7.1f}" if "bar" in of else " " * 7
        print(f"{name:20}{of['ratio']:8.2f}{bar}{of['ms']:10.1f}{of['copy_ms']:10.1f}")
    lines["links"] = kept("links", lambda: links_and_memory(1 if chosen.tiny else max(3, chosen.rounds // 2), chosen))
    table = lines["links"]["found"]
    print(f"\n| {'11.2 M entries':48} |      bytes | encode ms | decode ms | copies | send, vectors | recv, vectors |")
    print(f"| :{'-' * 47} | {'-' * 9}: | --------: | --------: | -----: | ------------: | ------------: |")
    for name, of in table.items():
        vectors = [f"{of[end]:.1f}" if end in of else "" for end in ("send_vectors", "recv_vectors")]
        times = f"{of['encode_ms']:9.1f} | {of['decode_ms']:9.1f} | {of['ratio']:6.1f}"
        print(f"| {f'`{name}`':48} | {of['bytes']:10,} | {times} | {vectors[0]:>13} | {vectors[1]:>13} |")
    if chosen.json:
        ratios = {name: round(of["ratio"], 3) for name, of in found.items()}
        about = {name: value for name, value in lines["links"].items() if name != "found"}
        print(json.dumps(ratios | about | {"links": table}))


if __name__ == "__main__":
    main()
