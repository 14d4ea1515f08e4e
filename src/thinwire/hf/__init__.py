"""Hugging Face models: transformers and PEFT models on texts, of which what is trained alone is sent.

Models and tokenizers are given, and called. transformers and peft are imported where a model is asked for by its name.
"""

from .adapter import save_adapter
from .build import problem
from .pretrained import load_base, load_tokenizer, make_adapted, model_folder, pretrained_names
from .standard import load_texts, standard
from .tasks import CausalLM, TextClassification

__all__ = [
    "CausalLM",
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
