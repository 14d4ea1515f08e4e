"""Texts to classify and to continue. Tests of the real files need THINWIRE_DATA to name a folder that has them."""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path

import pytest
import torch

import thinwire.data as data
from thinwire.data import DataSet, Natural
from thinwire.data import ag_news as ag_news_module
from thinwire.data import personachat as personachat_module
from thinwire.data import sst2 as sst2_module
from thinwire.data.words import bags, frequent
from thinwire.errors import DataError


@functools.cache
def real(name: str, folder: Path) -> DataSet:
    """A set from its real files, read once for all tests."""
    if not (folder / name.removesuffix("_words")).is_dir():
        pytest.skip(f"THINWIRE_DATA names a folder without {name}")
    return data.load(name, folder, download=False)


def sha(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere: an empty folder, an empty cache, no environment."""
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


# ---- words as ids -------------------------------------------------------------------------

TEXTS = [["to", "be", "or", "not", "to", "be"], ["be"], []]


def test_frequent_words_come_first_and_equal_ones_by_their_characters() -> None:
    assert frequent(TEXTS, 10) == ["be", "to", "not", "or"]
    assert frequent(TEXTS, 3) == ["be", "to", "not"]


def test_a_text_is_its_words_filled_up_with_zeros() -> None:
    # be 2, to 3, not 4, and or, which is none of the three words, 1
    assert bags(TEXTS, ["be", "to", "not"], length=4).tolist() == [[3, 2, 1, 4], [2, 0, 0, 0], [0, 0, 0, 0]]
    assert bags([], ["be"], length=4).shape == (0, 4)


def test_bigrams_are_hashed_into_columns_of_their_own() -> None:
    # (116049371 * zlib.crc32(b"to") + zlib.crc32(b"be")) % 1000 + 2 + 3, and so on for "be or" and "or not"
    expected = [[3, 2, 1, 4, 406, 619, 167, 0], [2, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]]
    assert bags(TEXTS, ["be", "to", "not"], length=4, buckets=1000).tolist() == expected


# ---- the sets -----------------------------------------------------------------------------

# rows = [l.rstrip("\n").split("\t") for l in gzip.open("train_subset.tsv.gz", "rt", encoding="utf8")][1:]
# test = list(csv.reader(gzip.open("test.csv.gz", "rt", encoding="utf8", newline="")))
# cut = lambda s: re.findall(r"[a-z0-9]+(?:'[a-z]+)?", re.sub(" ?#39;", "'", s.lower()))
# c = Counter(w for r in rows for w in cut(r[2])); words = sorted(c, key=lambda w: (-c[w], w))[:20000]
# i = {w: k + 2 for k, w in enumerate(words)}
# ids = lambda s, n: ([i.get(w, 1) for w in s][:n] + [0] * n)[:n]
# x = np.array([ids(cut(r[2]), 64) for r in rows]); xt = np.array([ids(cut(r[1] + " " + r[2]), 64) for r in test])
# sha256 of x sorted by rows (np.lexsort(x.T[::-1])), of xt
MOST_FREQUENT = ["the", "a", "to", "of", "in", "and", "on", "for"]


@pytest.mark.slow
def test_ag_news_is_read_word_by_word(data_dir: Path) -> None:
    news = real("ag_news", data_dir)
    assert news.name == "ag_news_subset"  # not to be taken for all 120,000 texts
    assert (news.inputs.shape, news.test_inputs.shape) == ((14_504, 64), (7_600, 64))
    assert news.inputs.dtype == news.targets.dtype == torch.int64
    assert (news.num_classes, news.vocabulary, news.groups) == (4, 20_002, None)
    assert news.targets.bincount().tolist() == [3649, 3596, 3633, 3626]
    assert news.test_targets.bincount().tolist() == [1900] * 4
    assert news.test_targets[:3].tolist() == [2, 3, 3]
    assert news.targets[:100].bincount(minlength=4).min() > 10  # shuffled: the file lies in order of its sources
    assert sha(news.test_inputs) == "b3f84e88b40e03e7"
    by_rows = torch.tensor(sorted(news.inputs.tolist()))
    assert sha(by_rows) == "ba60f739410a9ecd"
    # The first test text: "Fears for T N pension after talks", "Unions representing workers at Turner   Newall say ..."
    assert news.test_inputs[0, 1] == 2 + MOST_FREQUENT.index("for")
    first = news.test_inputs[0]
    assert int((first > 0).sum()) == 25
    assert (first == 1).nonzero().flatten().tolist() == [12]  # Newall
    assert first[5] == first[17]  # after
    assert first[6] == first[18]  # talks


@pytest.mark.slow
def test_sst2_is_tested_on_its_development_part(data_dir: Path) -> None:
    # the same with s.split() for cut(s) and 48 for 64; the sha256 of the arrays as they are
    reviews = real("sst2", data_dir)
    assert reviews.name == "sst2"
    assert (reviews.inputs.shape, reviews.test_inputs.shape) == ((67_349, 48), (872, 48))
    assert (reviews.num_classes, reviews.vocabulary) == (2, 14_819)
    assert reviews.targets.bincount().tolist() == [29_780, 37_569]
    assert reviews.test_targets.bincount().tolist() == [428, 444]
    assert reviews.targets[:5].tolist() == [0, 0, 1, 0, 0]
    # "hide new secretions from the parental units"
    assert reviews.inputs[0, :8].tolist() == [4576, 94, 13300, 37, 2, 7747, 10014, 0]
    assert (sha(reviews.inputs), sha(reviews.test_inputs)) == ("295d2d377bdb62c1", "fcd89e07cb18df4f")


@pytest.mark.slow
def test_the_treebanks_own_test_part_and_bigrams_are_there_on_request(data_dir: Path) -> None:
    if not (data_dir / "sst2").is_dir():
        pytest.skip("THINWIRE_DATA names a folder without sst2")
    reviews = sst2_module.sst2(data_dir, words=5_000, buckets=300, part="test")
    assert reviews.name == "sst2_test"
    assert reviews.test_targets.bincount().tolist() == [912, 909]
    assert reviews.vocabulary == 2 + 5_000 + 300
    assert reviews.inputs.shape == (67_349, 96)
    assert int(reviews.inputs[:, :48].max()) == 5_001
    pairs = reviews.inputs[:, 48:]
    assert pairs[0, :8].gt(0).tolist() == [True] * 6 + [False] * 2  # of seven words
    assert (int(pairs[pairs > 0].min()), int(pairs.max())) == (5_002, 5_301)


# P = {}  # dialogues as shared/data/README.md reads them
# for d in dialogues: P.setdefault(frozenset(d["persona"]), []).extend(u for t in d["turns"] for u in t)
# T = ["\n".join(v) for v in P.values()]; W = [[w for w in t.replace("\n", " \n ").split(" ") if w] for t in T]
# [sum((round(.8 * len(t)) - 1) // 80 for t in T), sum((len(t) - round(.8 * len(t)) - 1) // 80 for t in T)]
# the same for W with 20; c = Counter(w for t in W for w in t[: round(.8 * len(t))]); 1 + sum(n > 1 for n in c.values())
def test_personachat_is_cut_by_persona(data_dir: Path) -> None:
    talk = real("personachat", data_dir)
    letters = "\n !',.0123456789;?abcdefghijklmnopqrstuvwxyzé"
    assert talk.groups is not None
    assert (talk.inputs.shape, talk.test_inputs.shape) == ((7_704, 80), (1_664, 80))
    assert talk.inputs.dtype == talk.targets.dtype == talk.groups.dtype == torch.int64
    assert (talk.num_classes, talk.vocabulary) == (45, 45)
    text = "hello what are doing today ?\ni am good , i just got off work and tired , i have "
    assert "".join(letters[i] for i in talk.inputs[0]) == text
    assert torch.equal(talk.inputs[:, 1:], talk.targets[:, :-1])
    assert int(talk.targets[0, -1]) == int(talk.inputs[1, 0])  # the pieces of a persona follow one another
    assert sha(talk.inputs) == "0e6f6384b90a4af9"
    counts = talk.groups.bincount()
    assert (len(counts), int(counts.min())) == (680, 4)
    assert len(Natural()(talk.targets, talk.groups, 680, seed=0)) == 680


def test_personachat_is_there_by_words(data_dir: Path) -> None:
    talk = real("personachat_words", data_dir)
    assert talk.name == "personachat_words"
    assert (talk.inputs.shape, talk.test_inputs.shape) == ((7_542, 20), (1_602, 20))
    assert (talk.num_classes, talk.vocabulary) == (3_254, 3_254)
    assert torch.equal(talk.inputs[:, 1:], talk.targets[:, :-1])
    # "hello what are doing today ? \n i am good , i just got off work and tired , i": i is the most frequent word
    # but for the full stop, \n follows every utterance
    first = talk.inputs[0].tolist()
    assert len(first) == 20
    assert first[7] == first[11] == first[19]
    assert first[10] == first[18]
    assert 0 < (talk.test_inputs == 0).float().mean() < 0.05
    assert talk.groups is not None
    assert int(talk.groups.max()) == 679


def test_a_piece_may_have_another_length(data_dir: Path) -> None:
    if not (data_dir / "personachat").is_dir():
        pytest.skip("THINWIRE_DATA names a folder without personachat")
    assert personachat_module.personachat(data_dir, unit="word", context=7).inputs.shape[1] == 7
    with pytest.raises(ValueError, match="no persona has that much text: lower context"):
        personachat_module.personachat(data_dir, context=10_000)
    for settings in ({"context": -1}, {"test_share": 0.0}, {"test_share": 1.0}):
        with pytest.raises(ValueError, match="must"):
            personachat_module.personachat(data_dir, **settings)  # type: ignore[arg-type]


# ---- small files of the same form ---------------------------------------------------------


def packed(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


CSV = '"3","Oil, at last","He said ""no"" to Toshiba\'s"\n"1","It #39;s","over\\again"\n'


def test_the_published_news_are_preferred_to_the_subset(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ag_news_module, "_COUNT", 2)
    monkeypatch.setattr(ag_news_module, "_TEST_COUNT", 2)
    packed(bare / "ag_news/train_subset.tsv.gz", "")
    packed(bare / "ag_news/train.csv", CSV)
    packed(bare / "ag_news/test.csv.gz", CSV)
    news = data.load("ag_news", bare, download=False)
    assert news.name == "ag_news"
    assert news.targets.tolist() == news.test_targets.tolist() == [2, 0]
    # again at he it's last no oil over said to toshiba's, each once
    assert news.inputs[:, :8].tolist() == [[8, 3, 6, 4, 10, 7, 11, 12], [5, 9, 2, 0, 0, 0, 0, 0]]
    assert news.vocabulary == 2 + 11


def test_wrong_news_are_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ag_news_module, "_COUNT", 2)
    monkeypatch.setattr(ag_news_module, "_SUBSET_COUNT", 2)
    packed(bare / "ag_news/test.csv.gz", CSV)
    path = bare / "ag_news/train.csv.gz"
    for content, says in [
        (CSV + CSV, r"holds 4 texts instead of 2; it is truncated or another file"),
        ("", "holds 0 texts instead of 2"),
        (CSV.replace('"3"', '"5"'), "a row is not a class from 1 to 4, a title and a description"),
        (CSV.replace('"1",', '"1","",'), "a row is not a class"),
        ("a" * 200_000, "not a readable csv file"),
    ]:
        packed(path, content)
        with pytest.raises(DataError, match=rf"train\.csv\.gz: {says}"):
            data.load("ag_news", bare, download=False)
    path.unlink()
    path = bare / "ag_news/train_subset.tsv.gz"
    for content, says in [
        ("label\ttext\n", r"begins with 'label\\ttext' instead of the header"),
        ("label\tform\ttext\n1\tx\ty\n", "holds 1 texts instead of 2"),
        ("label\tform\ttext\n1\tx\ty\n2\ty\n", "a line has 2 columns instead of 3"),
        ("label\tform\ttext\n1\tx\ty\n0\tx\ty\n", "a row is not a class"),
    ]:
        packed(path, content)
        with pytest.raises(DataError, match=rf"train_subset\.tsv\.gz: {says}"):
            data.load("ag_news", bare, download=False)


@pytest.mark.parametrize("name", ["ag_news/train_subset.tsv.gz", "sst2/train.tsv.gz", "personachat/{}.gz"])
def test_a_damaged_text_is_named(bare: Path, name: str) -> None:
    path = bare / name.format(personachat_module.DIALOGUES.file)
    packed(bare / "ag_news/test.csv.gz", "")
    whole = gzip.compress(b"label\tsentence\n" * 1000)
    path.parent.mkdir(exist_ok=True)
    for content, says in [
        (whole[:-9], "the file is truncated"),
        (b"no gzip file", "not a readable gzip file"),
        (gzip.compress(b"\xff\xfe\x00"), "not a text in UTF-8"),
        (gzip.compress(bytes(33 << 20)), "holds more than the"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{path.name}: {says}"):
            data.load(path.parent.name, bare, download=False)


def test_an_unpacked_text_is_read_and_a_longer_one_refused(bare: Path) -> None:
    path = packed(bare / personachat_module.DIALOGUES.file, "é" * (2 << 20))
    with pytest.raises(DataError, match=r"no_cands\.txt: holds more than the 2,097,152 bytes"):
        personachat_module.personas(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"no_cands\.txt: cannot be read"):
        personachat_module.personas(path)


def test_reviews_are_read_in_both_orders_of_the_columns(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sst2_module, "_COUNTS", {"train": 2, "dev": 1, "test": 1})
    packed(bare / "sst2/train.tsv", "sentence\tlabel\r\na good , good film \t1\r\nnot a film \t0\r\n")  # as GLUE's
    packed(bare / "sst2/dev.tsv.gz", "label\tsentence\n0\tno good\n")
    reviews = data.load("sst2", bare, download=False)
    # a film good , not
    assert reviews.inputs[:, :6].tolist() == [[2, 4, 5, 4, 3, 0], [6, 2, 3, 0, 0, 0]]
    assert reviews.targets.tolist() == [1, 0]
    assert reviews.test_inputs[0, :3].tolist() == [1, 4, 0]
    packed(bare / "sst2/test.tsv", "index\tsentence\n0\tno good\n")
    with pytest.raises(DataError, match=r"test\.tsv: begins with .* header label, sentence; GLUE's test file has no"):
        sst2_module.sst2(bare, part="test")


def test_wrong_reviews_are_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sst2_module, "_COUNTS", {"train": 2})
    path = bare / "sst2/train.tsv"
    for content, says in [
        ("", "begins with '' instead of the header"),
        ("label\tsentence\n1\ta\n", "holds 1 texts instead of 2"),
        ("label\tsentence\n1\ta\n2\tb\n", "a line is not a label 0 or 1 and a sentence"),
        ("label\tsentence\n1\ta\n1\tb\tc\n", "a line is not a label"),
        ("label\tsentence\n1\ta\n1\n", "a line is not a label"),
    ]:
        packed(path, content)
        with pytest.raises(DataError, match=rf"train\.tsv: {says}"):
            data.load("sst2", bare, download=False)


def test_what_is_not_downloaded_is_answered_with_where_to_get_it(bare: Path) -> None:
    with pytest.raises(DataError) as caught:
        data.load("sst2", bare)
    assert str(caught.value) == (
        f"sst2: train.tsv is missing; put it at {bare}/sst2/train.tsv (looked in {bare}/sst2, "
        f"{bare}/cache/thinwire/sst2); it is not downloaded: take it out of "
        "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
    )


DIALOGUE = "1 your persona: i am.\n2 your persona: i was.\n3 hello\thi . you ?\n4 me .\tbye\n"


def test_dialogues_under_one_persona_are_joined(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("_DIALOGUES", 3), ("_PERSONAS", 2), ("_EXCHANGES", 4)):
        monkeypatch.setattr(personachat_module, name, count)
    other = "1 your persona: i will.\n2 oh\tah\n"
    turned = "1 your persona: i was.\n2 your persona: i am.\n3 so\tlong\n"
    path = packed(bare / "a.txt", DIALOGUE + other + turned)
    assert personachat_module.personas(path) == [["hello", "hi . you ?", "me .", "bye", "so", "long"], ["oh", "ah"]]


def test_other_dialogues_are_named(bare: Path) -> None:
    path = bare / "a.txt"
    with pytest.raises(DataError, match=r"a\.txt: holds 2 dialogues, 1 personas, 4 exchanges instead of 1,000, 680"):
        personachat_module.personas(packed(path, 2 * DIALOGUE))
    for wrong in ("5 no tab\n", "5 two\ttabs\tof it\n", "x one\ttab\n", "hello\n", "\n"):
        with pytest.raises(DataError, match=r"a\.txt: a line is neither a persona's sentence nor an exchange"):
            personachat_module.personas(packed(path, DIALOGUE + wrong))
    with pytest.raises(DataError, match=r"a\.txt: a line is neither"):
        personachat_module.personas(packed(path, "3 an exchange\tbefore any persona\n"))


@pytest.mark.parametrize("settings", [{"words": 0}, {"length": 0}, {"buckets": -1}])
def test_a_setting_out_of_range_is_refused_at_once(bare: Path, settings: dict[str, int]) -> None:
    for load in (ag_news_module.ag_news, sst2_module.sst2):
        with pytest.raises(ValueError, match="words and length must be at least 1, buckets at least 0"):
            load(bare, **settings)  # type: ignore[operator]
