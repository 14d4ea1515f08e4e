"""What a transformers model has to be for its texts, said before anything is trained."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import require


def check_model(module: nn.Module, longest: int, classes: int | None, fill: int, ragged: bool) -> None:
    """Raise ``ValueError`` for a model that cannot be trained on rows of ``longest`` tokens.

    ``classes`` is the highest class, None for texts to continue; ``fill`` the padding token's id, which a classifier
    that reads the last token has to know, where rows are filled up (``ragged``).
    """
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    require(
        bool(trained),
        "the model has no trainable parameters: get_peft_model(model, LoraConfig(...)) adds adapters, "
        "PeftModel.from_pretrained(..., is_trainable=True) loads them to be trained, model.requires_grad_() trains all",
    )
    half = any(p.dtype == torch.float16 for _, p in trained)
    require(not half, "the model is in float16: load it with dtype=torch.float32 or torch.bfloat16")
    config = getattr(module, "config", None)
    most = getattr(config, "max_position_embeddings", None)
    require(
        most is None or longest <= most,
        f"a row has {longest} tokens, and the model takes {most}: length={most} cuts them",
    )
    if classes is None:
        return
    labels = getattr(config, "num_labels", None)
    require(
        labels is None or classes < labels,
        f"labels go to {classes}, and the model has {labels} outputs: make it with num_labels={classes + 1}",
    )
    known = getattr(config, "pad_token_id", fill)
    require(
        not ragged or known == fill,
        f"the model's padding token is {known}, and the tokenizer's {fill}: set model.config.pad_token_id = "
        f"tokenizer.pad_token_id, by which a classifier finds the end of a text",
    )
