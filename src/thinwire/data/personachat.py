"""PersonaChat: English small talk of people who play a persona each, for models of the next character or word.

S. Zhang et al., "Personalizing Dialogue Agents: I have a dog, do you have pets too?",
ACL 2018, arXiv:1801.07243, in the form of ConvAI2 (ParlAI). What is read are the 1,000
validation dialogues, under 680 personas; the 17,568 personas that federated papers deal to
clients are in the training file, which is another one. A figure here is not one there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..errors import DataError, require
from .dataset import DataSet
from .files import Official, obtain, read_text
from .pieces import cut, set_of_pieces
from .texts import Texts, cut_owned
from .words import frequent

DIALOGUES = Official(
    "valid_self_original_no_cands.txt",
    "https://raw.githubusercontent.com/bzantium/Posterior-Knowledge-Selection/"
    "d7ab647970b200c8a1ecbdfacb2c8fd3f3e11a37/data/valid_self_original_no_cands.txt",
    "7e26e8a266583dfe21fd2df4c651a2831dceeb7c87be9c7bb517974d9979c363",
)
_DIALOGUES, _PERSONAS, _EXCHANGES = 1_000, 680, 7_801
_MOST_BYTES = 2 << 20
_PERSONA = "your persona: "
_UNKNOWN = "<unk>"  # word 0
_WORD_OR_END = re.compile(r"[^ \n]+|\n")


def personachat(
    data_dir: str | Path | None = None,
    download: bool = True,
    unit: Literal["character", "word"] = "character",
    context: int | None = None,
    test_share: float = 0.2,
) -> DataSet:
    """Pieces of ``context`` characters or words, int64 [n, context], and the same shifted by one.

    The text of a persona is its dialogues, one utterance a line, the partner's and its own in
    turn; the sentences that describe the persona are left out. The last ``test_share`` of it
    is for testing. Pieces do not overlap, and no piece reaches from the training into the
    test part. ``groups`` counts the personas in the order of their first dialogue.

    As words, blanks cut the text and the end of a line is a word; those that occur once only
    in the training parts are all word 0. ``context`` is 80 characters (McMahan et al., AISTATS
    2017) or 20 words (Reddi et al., arXiv:2003.00295) if it is not given. Raises DataError for
    a missing or wrong file, ValueError for settings that leave nothing.
    """
    context = context or (80 if unit == "character" else 20)
    require(context >= 1, "context must be at least 1")
    require(0 < test_share < 1, "test_share must lie between 0 and 1")
    path = obtain("personachat", DIALOGUES, data_dir, download, forms=(f"{DIALOGUES.file}.gz",))
    texts = ["\n".join(lines) for lines in personas(path)]
    owned = [list(text) if unit == "character" else _WORD_OR_END.findall(text) for text in texts]
    train = [units[: round((1 - test_share) * len(units))] for units in owned]
    test = [units[len(seen) :] for units, seen in zip(owned, train, strict=True)]
    known = vocabulary(train, owned, unit)
    index = {each: i for i, each in enumerate(known)}
    pieces, test_pieces = (
        [cut([index.get(each, 0) for each in units], context) for units in part] for part in (train, test)
    )
    name = "personachat" if unit == "character" else "personachat_words"
    return set_of_pieces(name, pieces, test_pieces, len(known), "no persona has that much text: lower context")


def personachat_words(data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """:func:`personachat` by words."""
    return personachat(data_dir, download, unit="word")


def personachat_texts(data_dir: str | Path | None = None, download: bool = True, test_share: float = 0.2) -> Texts:
    """The utterances, a text each, owned by the persona of their dialogue; the last ``test_share`` of each persona's
    are for testing.
    """
    require(0 < test_share < 1, "test_share must lie between 0 and 1")
    path = obtain("personachat", DIALOGUES, data_dir, download, forms=(f"{DIALOGUES.file}.gz",))
    return cut_owned("personachat", personas(path), test_share)


def vocabulary(train: Sequence[Sequence[str]], everything: Sequence[Sequence[str]], unit: str) -> list[str]:
    """Every character, sorted; or ``<unk>`` and the words of the training parts that occur twice, frequent ones first.

    Unit i of it is class i.
    """
    if unit == "character":
        return sorted({each for units in everything for each in units})
    counts = Counter(each for units in train for each in units)
    return [_UNKNOWN, *(each for each in frequent(train, len(counts)) if counts[each] >= 2)]


def personas(path: Path) -> list[list[str]]:
    """The utterances of all dialogues under each persona, in the order of the file.

    Dialogues are under the same persona if it has the same sentences, in whatever order.
    """
    personas: dict[frozenset[str], list[str]] = {}
    dialogues = exchanges = 0
    sentences: list[str] = []
    utterances: list[str] = []
    for line in [*read_text(path, _MOST_BYTES).removesuffix("\n").split("\n"), "1 "]:  # "1 " closes the last dialogue
        number, blank, rest = line.partition(" ")
        if number == "1" and sentences:
            personas.setdefault(frozenset(sentences), []).extend(utterances)
            sentences, utterances, dialogues = [], [], dialogues + 1
        if rest.startswith(_PERSONA):
            sentences.append(rest.removeprefix(_PERSONA))
        elif rest.count("\t") == 1 and sentences and number.isdecimal():
            utterances += rest.split("\t")
            exchanges += 1
        elif rest or not blank:
            raise DataError(f"{path}: a line is neither a persona's sentence nor an exchange: {line[:60]!r}")
    if (dialogues, len(personas), exchanges) != (_DIALOGUES, _PERSONAS, _EXCHANGES):
        raise DataError(
            f"{path}: holds {dialogues:,} dialogues, {len(personas):,} personas, {exchanges:,} exchanges instead of "
            f"{_DIALOGUES:,}, {_PERSONAS:,} and {_EXCHANGES:,}; it is truncated or another file"
        )
    return list(personas.values())
