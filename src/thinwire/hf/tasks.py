"""Texts as tasks: batches are dicts as transformers names their parts, and every token that counts counts alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from ..losses import IGNORED, Perplexity, Ratio, accuracy, cross_entropy, ignores, weigh
from .head import logits_of, nats, score
from .rows import Rows

MOST_NUMBERS = 1 << 24  # of the widest layer's output in evaluation: 64 MiB of 32-bit floats
MOST_EXAMPLES = 100  # evaluated at once

TextBatch = dict[str, Tensor]
"""``input_ids`` and ``attention_mask``, int64 [b, longest], and ``labels``: what ``module(**batch)`` takes."""


@dataclass(frozen=True)
class _Texts:
    """Rows of token ids, of which ``indices`` are this client's; ``fill`` is the padding token's id."""

    rows: Rows
    labels: Any
    indices: Int64[Tensor, " n"]
    fill: int = 0

    def __len__(self) -> int:
        return len(self.indices)

    def data_tensors(self) -> list[Tensor]:
        """All that a client's batches are made of, by which a run that goes on knows its data."""
        labels = self.labels if isinstance(self.labels, Rows) else [self.labels]
        return [*self.rows, *labels, self.indices]

    def inputs(self, which: Int64[Tensor, " b"]) -> TextBatch:
        ids, inside = self.rows.pad(which, self.fill)
        return {"input_ids": ids, "attention_mask": inside.long()}

    def most_at_once(self, width: int) -> int:
        """How many examples are evaluated at once where the widest layer has so many outputs a token."""
        longest = int(self.rows.sizes()[self.indices].max()) if len(self) else 1
        return max(1, min(MOST_EXAMPLES, MOST_NUMBERS // (width * longest)))


@dataclass(frozen=True)
class CausalLM(_Texts):
    """Texts to continue: each token from those before it. ``labels`` are :class:`Rows` beside ``rows``: the ids that
    count as targets, and -100 where none does.

    The loss is a :class:`Ratio` of nats over tokens, so that its mean over a batch, a client or a test is that over
    all tokens that count, as transformers' own loss of a batch is. ``perplexity`` is exp of that mean over the whole
    test, and ``accuracy`` the share of tokens that the largest logit names. A row's first token is no target, unless
    a prompt that is tuned stands before it. Rows are filled up on the right.
    """

    labels: Rows

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> TextBatch:
        which = self.indices[indices]
        return self.inputs(which) | {"labels": self.labels.pad(which, IGNORED)[0]}

    def loss(self, module: nn.Module, batch: TextBatch) -> Ratio:
        logits, targets = self._outputs(module, batch)
        return _ratio(nats(logits, targets), targets)

    def metrics(self, module: nn.Module, batch: TextBatch) -> dict[str, Tensor | Ratio]:
        logits, targets = self._outputs(module, batch)
        each = score(logits, targets)
        loss = _ratio(each.nats, targets)
        right = each.right.sum(1).to(loss.counts)
        return {"loss": loss, "perplexity": Perplexity(*loss), "accuracy": Ratio(right, loss.counts)}

    def _outputs(self, module: nn.Module, batch: TextBatch) -> tuple[Float[Tensor, "b t v"], Int64[Tensor, "b t"]]:
        """Logits, and of each what comes next. The targets are moved and not the logits, which are large.

        Prompt tuning puts tokens of its own before a row. Then the row's first token is a target too, as PEFT has it.
        """
        logits = logits_of(
            module, input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
        )
        before = logits.shape[1] - batch["labels"].shape[1]
        return logits, F.pad(batch["labels"], (before - 1, 1), value=IGNORED)

    def at_once(self, module: nn.Module) -> int:
        """How many examples are evaluated at once, so that logits and what is made of them fit into memory."""
        config = getattr(module, "config", None)
        return self.most_at_once(max(_inner(config), int(getattr(config, "vocab_size", 0) or 0)))


@dataclass(frozen=True)
class TextClassification(_Texts):
    """Texts with a class each: ``labels``, int64, one a row, -100 where a row has none.

    The loss is the cross-entropy of the logits, one value an example; the metric is ``accuracy``. Rows are filled up on
    the right, and masked there.
    """

    labels: Int64[Tensor, " rows"]

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> TextBatch:
        which = self.indices[indices]
        return self.inputs(which) | {"labels": self.labels[which]}

    def loss(self, module: nn.Module, batch: TextBatch) -> Tensor | Ratio:
        return self._weigh(cross_entropy(self._outputs(module, batch), batch["labels"]), batch["labels"])

    def metrics(self, module: nn.Module, batch: TextBatch) -> dict[str, Tensor | Ratio]:
        logits, labels = self._outputs(module, batch), batch["labels"]
        measured = {"loss": cross_entropy(logits, labels), "accuracy": accuracy(logits, labels)}
        return {name: self._weigh(values, labels) for name, values in measured.items()}

    def _outputs(self, module: nn.Module, batch: TextBatch) -> Float[Tensor, "b classes"]:
        logits: Tensor = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits

    def _weigh(self, values: Tensor, labels: Tensor) -> Tensor | Ratio:
        return weigh(values, labels) if ignores(self.labels) else values

    def at_once(self, module: nn.Module) -> int:
        """How many examples are evaluated at once, so that what a layer makes of them fits into memory."""
        return self.most_at_once(_inner(getattr(module, "config", None)))


def _ratio(nats: Float[Tensor, "b t"], targets: Int64[Tensor, "b t"]) -> Ratio:
    """Nats of each example, over its targets that count."""
    totals = nats.sum(1)
    return Ratio(totals, (targets != IGNORED).sum(1).to(totals))


def _inner(config: Any) -> int:
    """Numbers a token that a layer has at most inside: those of its feed-forward part."""
    hidden = int(getattr(config, "hidden_size", 0) or 256)
    return int(getattr(config, "intermediate_size", 0) or 4 * hidden)
