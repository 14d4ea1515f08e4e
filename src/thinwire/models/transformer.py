"""A small causal transformer that predicts the next character.

The block is that of GPT-2 (Radford et al., 2019): norm first, attention and a layer of four
times the width with GELU, each added to its input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import require


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
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # What is added to the stream is scaled down, so that depth does not swell it (GPT-2).
                std = 0.02 / (2 * depth) ** 0.5 if name.endswith("out.weight") else 0.02
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.dropout(self.positions(self.characters(characters)))  # [n, length, width]
        out: Tensor = self.dense(self.norm(self.blocks(x)))
        return out

    def chain(self) -> list[nn.Module]:
        """The modules in order, each of which takes what the one before gives: where a pipeline may cut."""
        return [self.characters, self.positions, self.dropout, *self.blocks, self.norm, self.dense]


class _Positions(nn.Embedding):
    """Adds what is learnt of each position to what was embedded, [n, length, width]."""

    def forward(self, embedded: Tensor) -> Tensor:
        length, context = embedded.shape[-2], self.num_embeddings
        require(length <= context, f"{length} characters are more than the context of {context}")
        return embedded + super().forward(torch.arange(length, device=embedded.device))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.dropout(self.out(F.gelu(self.wide(self.norm2(x)))))
        return out


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        joined = self.queries_keys_values(x).reshape(n, length, 3, self.heads, width // self.heads)
        q, k, v = joined.permute(2, 0, 3, 1, 4)  # each [n, heads, length, width / heads]
        rate = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        out: Tensor = self.dropout(self.out(y.transpose(1, 2).reshape(n, length, width)))
        return out
