"""What a transformers model has to be for its texts, said before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..dice import put_back
from ..errors import require
from .rows import Rows
from .tasks import CausalLM, TextClassification

LOOKED = 8  # tokens of a text that are enough to see whether a model looks ahead


class Needs(NamedTuple):
    """What tasks ask of a model."""

    causal: bool
    longest: int  # tokens of a row
    token: int  # the highest id in a row, or to fill it up
    target: int  # the highest class, or the highest token that counts
    row: list[int]  # the shortest with two tokens, if any has two
    fill: int
    ragged: bool  # whether rows are filled up

    @classmethod
    def of(cls, tasks: Sequence[CausalLM | TextClassification], fill: int, ragged: bool) -> Needs:
        """What these tasks ask, with ``fill`` as the padding token's id."""
        causal, whole = isinstance(tasks[0], CausalLM), {id(task.rows): task.rows for task in tasks}.values()
        labels = {id(task.labels): task.labels for task in tasks}.values()
        targets = [each.flat if isinstance(each, Rows) else each for each in labels]
        return cls(
            causal,
            max(int(task.rows.sizes().max()) for task in tasks),
            max(fill if ragged else 0, *(int(rows.flat.max()) for rows in whole)),
            max(int(each.max()) for each in targets),
            min((_shortest(rows) for rows in whole), key=len),
            fill,
            ragged,
        )


def _shortest(rows: Rows) -> list[int]:
    sizes = rows.sizes()
    which = int(torch.where(sizes > 1, sizes, sizes.max() + 1).argmin())
    row: list[int] = rows.flat[rows.edges[which] : rows.edges[which + 1]].tolist()
    return row


def check_model(module: nn.Module, needs: Needs) -> None:
    """Raise ``ValueError`` for a model that cannot be trained on such texts.

    A model of transformers' or PEFT's own classes is asked for the logits of the shortest.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    require(
        bool(trained),
        "the model has no trainable parameters: get_peft_model(model, LoraConfig(...)) adds adapters, "
        "PeftModel.from_pretrained(..., is_trainable=True) loads them to be trained, model.requires_grad_() trains all",
    )
    half = any(p.dtype == torch.float16 for p in trained)
    require(not half, "the model is in float16: load it with dtype=torch.float32 or torch.bfloat16")
    adapter: Any = getattr(module, "active_peft_config", None)
    require(
        getattr(adapter, "peft_type", None) != "ADALORA",
        "AdaLoRA takes ranks away by a call after each step, which nobody makes here, so that target_r would not "
        "count: take LoraConfig",
    )
    config, most = getattr(module, "config", None), _positions(module)
    most = None if most is None else most - (getattr(adapter, "num_virtual_tokens", None) or 0)
    require(
        most is None or needs.longest <= most,
        f"a row has {needs.longest} tokens, and the model takes {most}: length={most} cuts them",
    )
    if (words := _words(module)) is not None:
        require(
            needs.token < words,
            f"token ids go to {needs.token}, and those of the model to {words - 1}: give its own tokenizer, or "
            f"model.resize_token_embeddings(len(tokenizer)) before adapters are added",
        )
    require(
        not (needs.causal and getattr(config, "is_encoder_decoder", False)),
        "the model is an encoder and a decoder, which is shown the text that it is to continue: take one of "
        "AutoModelForCausalLM",
    )
    outputs = None if needs.causal else getattr(config, "num_labels", None)
    if outputs is not None:
        _check_classes(outputs, needs)
    known = getattr(config, "pad_token_id", needs.fill)
    require(
        needs.causal or not needs.ragged or known == needs.fill,
        f"the model's padding token is {known}, and the tokenizer's {needs.fill}: set model.config.pad_token_id = "
        f"tokenizer.pad_token_id, by which a classifier finds the end of a text",
    )
    # What a class of the user's leaves on itself when it is called is not known.
    known_class = type(module).__module__.partition(".")[0] in ("transformers", "peft")
    if known_class and not any(p.is_meta for p in module.parameters()):
        _check_outputs(module, needs)


def _check_classes(outputs: int, needs: Needs) -> None:
    require(
        needs.target < outputs,
        f"labels go to {needs.target}, and the model has {outputs} outputs: make it with num_labels={needs.target + 1}",
    )
    require(outputs > 1, "the model has 1 output, by which classes cannot be told apart: make it with num_labels=2")


def _positions(module: nn.Module) -> int | None:
    """How many tokens a row may have; None where nothing says it."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding) and name.endswith("position_embeddings") and layer.padding_idx is not None:
            return layer.num_embeddings - layer.padding_idx - 1  # a RoBERTa counts from there
    most = getattr(getattr(module, "config", None), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None  # -1: as many as there are


def _words(module: Any) -> int | None:
    """How many tokens a model knows; None where it does not say so."""
    try:
        return len(module.get_input_embeddings().weight)
    except (AttributeError, NotImplementedError):
        return None


@torch.no_grad()
def _check_outputs(module: nn.Module, needs: Needs) -> None:
    """Raise ``ValueError`` unless the logits of a text are those of classes, or of tokens that come next."""
    row = needs.row[:LOOKED] if needs.causal else needs.row
    modes = [(part, part.training) for part in module.modules()]
    try:
        with put_back():
            logits = _logits(module.eval(), row, needs.causal)
            shape = list(logits.shape)
            if not needs.causal:
                require(
                    logits.ndim == 2,
                    f"the model gives logits {shape} for one text: a classifier has one for each class, as those of "
                    f"AutoModelForSequenceClassification",
                )
                _check_classes(shape[1], needs)
                return
            require(
                logits.ndim == 3 and shape[1] >= len(row) and shape[2] > needs.target,
                f"the model gives logits {shape} for one text of {len(row)} tokens, and targets go to {needs.target}: "
                f"take one of AutoModelForCausalLM, with a logit for each token that comes next",
            )
            ahead = _logits(module, [*row[:-1], int(row[-1] == 0)], True)
    finally:
        for part, training in modes:
            part.training = training
    slack = torch.finfo(logits.dtype).eps * logits.abs().max()
    require(
        bool(((ahead - logits)[:, :-1].abs() <= slack).all()),
        "the model looks ahead: its logits at a token depend on the tokens after it, which they are to foretell. Take "
        "one of AutoModelForCausalLM, and make an encoder with is_decoder=True",
    )


def _logits(module: nn.Module, row: list[int], causal: bool) -> Tensor:
    """The logits of one row, as tasks ask for them."""
    ids = torch.tensor([row], device=next(module.parameters()).device)
    outputs = module(input_ids=ids, attention_mask=torch.ones_like(ids), **({"use_cache": False} if causal else {}))
    require(
        hasattr(outputs, "logits"),
        f"the model gives a {type(outputs).__name__} without logits: take one with a head, as those of "
        f"AutoModelForCausalLM and AutoModelForSequenceClassification are",
    )
    logits: Tensor = outputs.logits
    return logits
