"""CIFAR-10 by DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/ddp/cifar10.py --epochs 10

The data are looked for in THINWIRE_DATA and the user's cache, and downloaded by rank 0 if they are nowhere.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from thinwire.data import load


def block(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def network() -> nn.Module:
    """1,343,410 parameters."""
    convs = nn.Sequential(block(3, 64), block(64, 128), block(128, 256), block(256, 384))
    return nn.Sequential(convs, nn.Flatten(), nn.Linear(384 * 4, 56), nn.ReLU(), nn.Linear(56, 10))


def loader(inputs: torch.Tensor, targets: torch.Tensor, batch: int, training: bool) -> DataLoader:
    data = TensorDataset(inputs.float().div(127.5).sub(1), targets)
    sampler = DistributedSampler(data, shuffle=training, drop_last=training)
    return DataLoader(data, batch, sampler=sampler, drop_last=training)


@torch.no_grad()
def accuracy(model: nn.Module, batches: DataLoader, device: torch.device) -> float:
    """Of all ranks' parts of the test set."""
    model.eval()
    counts = torch.zeros(2, device=device)
    for x, y in batches:
        right = model(x.to(device)).argmax(1) == y.to(device)
        counts += torch.tensor([float(right.sum()), len(y)], device=device)
    dist.all_reduce(counts)
    model.train()
    return float(counts[0] / counts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="examples a rank takes in a step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--examples", type=int, default=50_000, help="of the training set")
    o = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if rank == 0:
        load("cifar10")
    dist.barrier()
    data = load("cifar10")
    train = loader(data.inputs[: o.examples], data.targets[: o.examples], o.batch, training=True)
    test = loader(data.test_inputs[: o.examples], data.test_targets[: o.examples], 500, training=False)

    torch.manual_seed(0)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=o.lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [o.epochs // 2, o.epochs * 3 // 4], gamma=0.1)

    for epoch in range(1, o.epochs + 1):
        train.sampler.set_epoch(epoch)
        began = time.perf_counter()
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        schedule.step()
        seconds = time.perf_counter() - began
        found = accuracy(model, test, device)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {found:.4f}, {seconds:.1f} s", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "cifar10.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
