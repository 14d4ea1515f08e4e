"""Texts as they are, for models that bring a tokenizer of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Texts:
    """A set of texts in memory, training part and test part.

    Texts to classify have ``labels``, whole numbers from 0 to ``num_classes - 1``; texts to continue have none.
    ``owners`` is the natural owner of each training text, counted from 0; None where the set has none.
    """

    name: str
    texts: list[str]
    test_texts: list[str]
    labels: list[int] | None = None
    test_labels: list[int] | None = None
    num_classes: int | None = None
    owners: list[int] | None = None


def cut_owned(name: str, owned: list[list[str]], test_share: float) -> Texts:
    """The texts of each owner in order, of which the last ``test_share`` is for testing."""
    ends = [round((1 - test_share) * len(texts)) for texts in owned]
    train = [(text, owner) for owner, texts in enumerate(owned) for text in texts[: ends[owner]]]
    test = [text for owner, texts in enumerate(owned) for text in texts[ends[owner] :]]
    return Texts(name, [text for text, _ in train], test, owners=[owner for _, owner in train])
