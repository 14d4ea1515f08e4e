"""Hugging Face models: transformers and PEFT models on texts, of which what is trained alone is sent.

Neither transformers nor peft is imported here: models and tokenizers are given, and called.
"""

from .adapter import save_adapter
from .build import problem
from .tasks import CausalLM, TextClassification

__all__ = ["CausalLM", "TextClassification", "problem", "save_adapter"]
