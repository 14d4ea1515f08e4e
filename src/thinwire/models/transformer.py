"""Small transformers: a causal one that predicts the next character, and one that classifies texts.

The block is that of GPT-2 (Radford et al., 2019): norm first, attention and a layer of four
times the width with GELU, each added to its input. The classifier reads a text in both directions, as BERT does (Devlin
et al., 2019), with the fixed positions of Vaswani et al., 2017.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import require

_FILL = 0  # the id that fills texts up
_LONGEST = 10_000  # of the wavelengths of positions, in words over 2 pi


def text_transformer(
    vocabulary: int, classes: int, width: int = 64, depth: int = 2, heads: int = 4, dropout: float = 0.0
) -> nn.Module:
    """Ids int64 [n, length] below ``vocabulary``, 0 where there is no word, to logits [n, classes].

    The mean over a text's words of what ``depth`` blocks make of them goes into a dense layer. vocabulary * width +
    (width + 1) * classes + depth * (12 * width ** 2 + 13 * width) + 2 * width parameters. A text without a word has the
    bias as its logits. Raises ValueError for a vocabulary of no word, where ``width`` is no multiple of ``heads``, and
    where it is odd.
    """
    require(vocabulary >= 2, f"vocabulary={vocabulary}: id 0 is no word, so that there must be 2 ids or more")
    require(width % heads == 0, f"width ({width}) must be a multiple of heads ({heads})")
    require(width % 2 == 0, f"width ({width}) must be even: a position is sines and cosines")
    return TextTransformer(vocabulary, classes, width, depth, heads, dropout)


class TextTransformer(nn.Module):
    """An embedding, positions without parameters, ``depth`` blocks, a norm and a dense layer.

    On a CPU texts are read as far as the longest of them goes: what fills them up further takes no time.
    """

    def __init__(self, vocabulary: int, classes: int, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=_FILL)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout, causal=False) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.dense = nn.Linear(width, classes)
        _begin(self, depth)
        nn.init.zeros_(self.words.weight[_FILL].detach())

    def forward(self, words: Tensor) -> Tensor:
        if words.device.type == "cpu":  # a GPU would wait for the length, and models side by side have none in common
            longest = (words != _FILL).any(dim=0).nonzero()  # places where any text has a word
            words = words[:, : int(longest[-1]) + 1 if len(longest) else 1]
        there = words != _FILL  # [n, length]
        read = there | ~there.any(dim=1, keepdim=True)  # attention to nothing would be no number
        x = self.words(words)
        x = self.dropout(x + 0.02 * _waves(x.shape[1], x.shape[2]).to(x))  # as strong as words are when training begins
        for block in self.blocks:
            x = block(x, read[:, None, None, :])
        counts = there.sum(dim=1, keepdim=True).clamp(min=1)  # [n, 1]
        out: Tensor = self.dense((self.norm(x) * there[..., None]).sum(dim=1) / counts)
        return out


def _waves(length: int, width: int) -> Tensor:
    """Sines and cosines of each position, [length, width]."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(_LONGEST) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


def _begin(module: nn.Module, depth: int) -> None:
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            # What is added to the stream is scaled down, so that depth does not swell it (GPT-2).
            std = 0.02 / (2 * depth) ** 0.5 if name.endswith("out.weight") else 0.02
            nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def char_transformer(
    vocabulary: int = 65,
    context: int = 80,
    width: int = 128,
    depth: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
) -> nn.Module:
    """Characters int64 [n, length], length at most ``context``, to logits [n, length, vocabulary].

    423,745 parameters by default. Raises ValueError where ``width`` is no multiple of ``heads``.
    """
    require(width % heads == 0, f"width ({width}) must be a multiple of heads ({heads})")
    return CharTransformer(vocabulary, context, width, depth, heads, dropout)


class CharTransformer(nn.Module):
    """Character and position embeddings, ``depth`` blocks, a norm and a dense layer."""

    def __init__(self, vocabulary: int, context: int, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = _Positions(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[_Block(width, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.dense = nn.Linear(width, vocabulary)
        _begin(self, depth)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.dropout(self.positions(self.characters(characters)))  # [n, length, width]
        out: Tensor = self.dense(self.norm(self.blocks(x)))
        return out

    def chain(self) -> list[nn.Module]:
        """The modules in order, each of which takes what the one before gives: where a pipeline may cut."""
        halves = [half for block in self.blocks for half in block.children()]
        return [self.characters, self.positions, self.dropout, *halves, self.norm, self.dense]


class _Positions(nn.Embedding):
    """Adds what is learnt of each position to what was embedded, [n, length, width]."""

    def forward(self, embedded: Tensor) -> Tensor:
        length, context = embedded.shape[-2], self.num_embeddings
        require(length <= context, f"{length} characters are more than the context of {context}")
        return embedded + super().forward(torch.arange(length, device=embedded.device))


class _Block(nn.Module):
    """Two modules, between which a pipeline may cut too."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool = True) -> None:
        super().__init__()
        self.attend = _Attend(width, heads, dropout, causal)
        self.feed = _Feed(width, dropout)

    def forward(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        out: Tensor = self.feed(self.attend(x, read))
        return out


class _Attend(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = _Attention(width, heads, dropout, causal)

    def forward(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        out: Tensor = x + self.attention(self.norm(x), read)
        return out


class _Feed(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.dropout(self.out(F.gelu(self.wide(self.norm(x)))))
        return out


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.rate, self.causal = heads, dropout, causal
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        n, length, width = x.shape
        joined = self.queries_keys_values(x).reshape(n, length, 3, self.heads, width // self.heads)
        q, k, v = joined.permute(2, 0, 3, 1, 4)  # each [n, heads, length, width / heads]
        rate = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, read, rate, self.causal)
        out: Tensor = self.dropout(self.out(y.transpose(1, 2).reshape(n, length, width)))
        return out
