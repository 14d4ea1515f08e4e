"""Hugging Face models: transformers and PEFT models on texts, of which what is trained alone is sent.

Models and tokenizers are given, and called. transformers and peft are imported where a model is asked for by its name.
"""

from typing import TYPE_CHECKING, Any

from .adapter import save_adapter
from .build import problem
from .named import load_texts, standard
from .pretrained import load_base, load_tokenizer, make_adapted, model_folder, pretrained_names
from .tasks import CausalLM, TextClassification

if TYPE_CHECKING:
    from .trainer import Compress

__all__ = [
    "CausalLM",
    "Compress",
    "TextClassification",
    "load_base",
    "load_texts",
    "load_tokenizer",
    "make_adapted",
    "model_folder",
    "pretrained_names",
    "problem",
    "save_adapter",
    "standard",
]


def __getattr__(name: str) -> Any:
    if name != "Compress":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .trainer import Compress  # a class of transformers', whose import takes seconds

    return Compress
