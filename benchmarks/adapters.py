"""Adapters on a frozen base: memory, seconds and files beside a bare loop over the same work.

LoRA of rank 32 on queries and values of SmolLM2-135M-Instruct, four rows of 64 tokens a step. Every way is a process of
its own, on one thread a worker, and makes its model once:

- ``bare``: the model and torch's AdamW over its adapters, as many steps as two clients take
- ``one``, ``two``: a round of ``simulate`` with one worker, and with two
- ``out``: a round with one worker that leaves a folder, with its checkpoint and its adapter
- ``coding``: ``TransformCoding`` of the adapters' update at 1 % of a visit, which needs no model

A peak is the largest resident size of the process (``ru_maxrss``). ``imports`` is what transformers and peft take until
they have made a tiny model. After it ``setup`` is the construction of the run, the call that makes the model included,
and ``round`` that of two clients. All are seconds of the processor, of all threads. ``--model minilm`` has texts of as
many tokens to classify, ``--tiny`` a Llama of random weights.

    python benchmarks/adapters.py --into benchmarks/results/adapters.jsonl
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import thinwire as tw
from thinwire import hf

RANK, LENGTH, BATCH, STEPS = 32, 64, 4, 3
LOCAL = tw.LocalAdamW(0.001, batch=BATCH, steps=STEPS)
WAYS = ("bare", "one", "two", "out")


def tiny() -> nn.Module:
    """A Llama of one layer with adapters."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=2000, **sizes))
    config = LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules=["q_proj", "v_proj"])
    made: nn.Module = get_peft_model(base, config)
    return made


def maker(model: str) -> Callable[[], nn.Module]:
    return tiny if model == "tiny" else hf.make_adapted(model, 4 if model == "minilm" else None, RANK)


def data(model: str) -> Any:
    """Rows of token ids, of two clients together, and labels where they are to be classified."""
    ids = torch.randint(10, 1000, (2 * BATCH * STEPS, LENGTH), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "label": [i % 4 for i in range(len(ids))]} if model == "minilm" else {"input_ids": ids}


def peak() -> float:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bare(model: str) -> dict[str, float]:
    began = time.process_time()
    module = maker(model)().train()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=LOCAL.lr, weight_decay=0.01)
    setup, rows = time.process_time() - began, data(model)
    labels = torch.tensor(rows["label"]) if "label" in rows else rows["input_ids"]

    def work() -> None:
        for start in range(0, len(labels), BATCH):
            ids = rows["input_ids"][start : start + BATCH]
            optimizer.zero_grad()
            loss = module(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels[start : start + BATCH]).loss
            loss.backward()
            optimizer.step()

    return {"setup": setup, "round": fastest(work, 2), "peak": peak()}


def federated(model: str, workers: int, out: Path | None) -> dict[str, float]:
    problem = hf.problem(
        maker(model),
        data(model),
        clients=2,
        task="classification" if model == "minilm" else "causal-lm",
        tokenizer=None if model == "tiny" else hf.load_tokenizer(model),
    )
    began = time.process_time()
    if out is not None:
        tw.simulate(tw.FedAvg(LOCAL), problem.model, problem.tasks, 1, workers=workers, out=out)
        sizes = {p.name: p.stat().st_size for p in out.rglob("*") if p.is_file()}
        return {"peak": peak(), "folder": sum(sizes.values()), "adapter": sizes["adapter_model.safetensors"]}
    with tw.Simulation(tw.FedAvg(LOCAL), problem.model, problem.tasks, workers=workers) as run:
        setup = time.process_time() - began
        found = {"setup": setup, "round": fastest(lambda: run.step(evaluate=False), 2)}
        run.result()
    return {**found, "peak": peak()}


def fastest(work: Callable[[], object], times: int) -> float:
    """Seconds of the processor, of all threads."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def coding(model: str) -> dict[str, float]:
    """Seconds of the processor of a send and of a receive, without feedback, and the bytes."""
    torch.set_num_threads(1)
    module, g = maker(model)(), torch.Generator().manual_seed(0)
    layout = tw.Layout.of([(name, p) for name, p in module.named_parameters() if p.requires_grad])
    x = tw.Params(layout, 1e-3 * torch.randn(layout.size, generator=g))
    link, key = tw.TransformCoding(round(0.01 * 4 * layout.size)), tw.Key(0)
    packet = link.send(x, None, key)[0]

    seconds = {
        "send": fastest(lambda: link.send(x, None, key), 9),
        "recv": fastest(lambda: link.recv(packet, layout, None, key), 9),
    }
    return {"entries": layout.size, "bytes": len(tw.dumps(packet)), **seconds}


def measure(model: str, way: str) -> dict[str, float]:
    torch.set_num_threads(1)
    if way == "coding":
        return coding(model)
    began = time.process_time()
    tiny()
    imports = time.process_time() - began
    if way == "bare":
        return {"imports": imports, **bare(model)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run" if way == "out" else None
        return {"imports": imports, **federated(model, 2 if way == "two" else 1, out)}


def compared(model: str) -> dict[str, Any]:
    """All ways, one process after another, and what the bars are about."""
    found: dict[str, Any] = {}
    for way in ("coding", *WAYS):
        command = [sys.executable, __file__, "--model", model, "--way", way]
        found[way] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ratios = {f"peak {way}": found[way]["peak"] / found["bare"]["peak"] for way in WAYS[1:]}
    ratios |= {"round": found["one"]["round"] / found["bare"]["round"]}
    return {"found": found, "ratios": ratios | {"folder": found["out"]["folder"] / found["out"]["adapter"]}}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2", choices=["minilm", "smollm2", "tiny"])
    options.add_argument("--tiny", action="store_const", dest="model", const="tiny")
    options.add_argument("--way", choices=[*WAYS, "coding"], help="this one alone, in this process")
    options.add_argument("--into", type=Path, help="append the figures to this file")
    chosen = options.parse_args()
    if chosen.way:
        print(json.dumps(measure(chosen.model, chosen.way)))
        return
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    key = {"benchmark": "adapters", "model": chosen.model, "rank": RANK, "length": LENGTH, "batch": BATCH}
    line = record.measured(chosen.into, key, lambda: compared(chosen.model), "transformers", "peft")
    for name, ratio in line["ratios"].items():
        print(f"{name:12s} {ratio:6.2f}")
    print(f"set-up {line['found']['one']['setup']:.2f} s, send {line['found']['coding']['send']:.3f} s")


if __name__ == "__main__":
    main()
