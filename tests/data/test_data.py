"""Loaders and splits. Tests of the real files need THINWIRE_DATA to name a folder that has them."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import os
import pickle
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import thinwire.data as data
from thinwire.data import (
    IID,
    DataSet,
    Dirichlet,
    Natural,
    Pathological,
    Shards,
    Similarity,
    Sites,
    Users,
    cifar,
    files,
    holdout,
)
from thinwire.data import mnist as mnist_module
from thinwire.data import shakespeare as shakespeare_module
from thinwire.data.cifar_pickle import read_batch
from thinwire.data.idx import read_idx
from thinwire.errors import DataError
from thinwire.problem import standard
from tiers import tiers


@functools.cache
def real(name: str, folder: Path) -> DataSet:
    """A set from its real files, read once for all tests."""
    try:
        return data.load(name, folder, download=False)
    except DataError as error:
        if " is missing; put it at " not in str(error):
            raise
        pytest.skip(f"THINWIRE_DATA names a folder without {name}")


def sha(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere: an empty folder, an empty cache, no environment."""
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


@pytest.fixture
def served(bare: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address at which it is served."""
    folder = bare / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


# ---- the sets -----------------------------------------------------------------------------


def test_the_first_ten_sets_keep_their_names() -> None:
    pictures = {"cifar10", "digits", "emnist_letters", "fashion_mnist", "mnist"}
    texts = {"ag_news", "personachat", "personachat_words", "shakespeare", "sst2"}
    assert pictures | texts <= set(data.names())
    assert data.names() == sorted(data.names())


SMALL_SETS = ("digits", "fashion_mnist", "shakespeare")  # and one of each kind


@pytest.mark.slow
@pytest.mark.parametrize("name", tiers(sorted(data.names(), key=lambda name: name not in SMALL_SETS), slow=3))
def test_every_set_has_what_a_data_set_promises(name: str, data_dir: Path) -> None:
    found = real(name, data_dir)
    assert found.name.removesuffix("_subset").removesuffix("_jpeg") == name
    for inputs, targets in ((found.inputs, found.targets), (found.test_inputs, found.test_targets)):
        assert 0 < len(inputs) == len(targets)
        if targets.dtype == torch.uint8:  # masks
            assert targets.shape == (len(inputs), *inputs.shape[2:])
            assert set(targets.unique().tolist()) <= {*range(found.num_classes), 255}
        else:
            assert targets.dtype == torch.int64
            assert 0 <= int(targets.min()) <= int(targets.max()) < found.num_classes
        if found.vocabulary is None:  # pictures
            assert inputs.ndim == 4
            assert inputs.shape[1:] == found.inputs.shape[1:]
            if inputs.dtype == torch.float32:
                assert (found.mean, found.std) == (None, None)
            else:
                assert inputs.dtype == torch.uint8
                assert len(found.mean or ()) == len(found.std or ()) == inputs.shape[1]
        else:
            assert (inputs.dtype, inputs.ndim) == (torch.int64, 2)
            assert (found.mean, found.std) == (None, None)
            assert targets.shape in (inputs.shape, inputs.shape[:1])
            assert 0 <= int(inputs.min()) <= int(inputs.max()) < found.vocabulary
    if found.groups is not None:
        assert found.groups.shape == found.targets.shape[:1]
        assert found.groups.unique().tolist() == list(range(int(found.groups.max()) + 1))
    if found.test_groups is not None:
        assert found.groups is not None
        assert found.test_groups.shape == found.test_targets.shape[:1]
        assert found.test_groups.unique().tolist() == found.groups.unique().tolist()


def test_an_unknown_set_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"no data set 'fashion-mnst' \(did you mean fashion_mnist\?\)"):
        data.load("fashion-mnst")


def test_digits_are_cut_by_class_always_in_the_same_way() -> None:
    first, second = data.load("digits"), data.load("digits")
    # np.bincount(load_digits().target) is 178 182 177 183 181 182 181 179 174 180; a fifth of each, rounded:
    assert first.test_targets.bincount().tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert first.inputs.shape == (1438, 1, 8, 8)
    assert first.inputs.dtype == torch.float32
    assert (float(first.inputs.min()), float(first.inputs.max())) == (0.0, 1.0)
    assert first.num_classes == 10
    assert (first.groups, first.mean, first.std) == (None, None, None)
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.test_targets, second.test_targets)
    everything = torch.cat([first.inputs, first.test_inputs]).double().sum() * 16
    assert int(everything) == 561718  # int(load_digits().data.sum())


# The shas: def idx(p):
#     b = gzip.open(p).read(); n = b[3]
#     return np.frombuffer(b, np.uint8, offset=4 + 4 * n).reshape(
#         [int.from_bytes(b[4 + 4 * i : 8 + 4 * i], "big") for i in range(n)])
# hashlib.sha256(idx(file).tobytes()).hexdigest()[:16]; np.bincount(idx(labels)); idx(images)[0, 14, 10:14]
@pytest.mark.slow
def test_fashion_mnist_is_the_original(data_dir: Path) -> None:
    fashion = real("fashion_mnist", data_dir)
    assert fashion.inputs.shape == (60_000, 1, 28, 28)
    assert fashion.inputs.dtype == torch.uint8
    assert fashion.inputs[0, 0, 14, 10:14].tolist() == [0, 0, 237, 226]
    assert (sha(fashion.inputs), sha(fashion.test_inputs)) == ("2e487a6c89124f78", "c867c93ff9536059")
    assert (sha(fashion.targets.byte()), sha(fashion.test_targets.byte())) == ("657fbd221bfc9f41", "3d0e6c6ea990b53b")
    assert fashion.targets.bincount().tolist() == [6000] * 10
    assert fashion.targets[:5].tolist() == [9, 0, 0, 3, 0]
    assert fashion.mean == (0.2860,)


@pytest.mark.slow
def test_mnist_is_the_original(data_dir: Path) -> None:
    mnist = real("mnist", data_dir)
    assert (sha(mnist.inputs), sha(mnist.test_inputs)) == ("741c988805d008ac", "6d87418db22cc802")
    assert mnist.targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.test_targets.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = mnist.inputs.double() / 255
    assert mnist.mean == pytest.approx([float(pixels.mean())], abs=5e-5)
    assert mnist.std == pytest.approx([float(pixels.std())], abs=5e-5)


@pytest.mark.slow
def test_the_letters_are_upright_and_count_from_zero(data_dir: Path) -> None:
    letters = real("emnist_letters", data_dir)
    assert letters.name == "emnist_letters_subset"  # not to be taken for all 124,800
    assert letters.inputs.shape == (52_000, 1, 28, 28)
    assert letters.test_inputs.shape == (20_800, 1, 28, 28)
    assert (sha(letters.inputs), sha(letters.test_inputs)) == ("99e1668bb7407565", "29150cc5b2fb6126")
    assert (sha(letters.targets.byte()), sha(letters.test_targets.byte())) == ("36631c8cabfecc12", "fc6f51735a4599a8")
    assert letters.targets.bincount().tolist() == [2000] * 26
    assert letters.test_targets.bincount().tolist() == [800] * 26
    assert letters.targets[:4].tolist() == [22, 6, 15, 14]  # W G P O
    pixels = letters.inputs.double() / 255
    assert letters.mean == pytest.approx([float(pixels.mean())], abs=5e-5)
    assert letters.std == pytest.approx([float(pixels.std())], abs=5e-5)
    # Turned back, the test pictures are the official file: its git blob id, from the repository it was copied out of.
    head = b"\0\0\x08\x03" + b"".join(side.to_bytes(4, "big") for side in (20_800, 28, 28))
    official = head + letters.test_inputs[:, 0].transpose(1, 2).contiguous().numpy().tobytes()
    blob = b"blob %d\0" % len(official) + official
    assert hashlib.sha1(blob).hexdigest() == "993b7cb0a248976f80daf3ada442d95a6cbd51f1"


def letters_in(folder: Path, prefix: str, counts: tuple[int, int], first: int) -> None:
    """Files of the form of EMNIST Letters: picture i has its one white pixel at row 2, column i % 28."""
    folder.mkdir(parents=True)
    for part, count in zip(("train", "test"), counts, strict=True):
        pictures = np.zeros((count, 28, 28), np.uint8)
        pictures[np.arange(count), 2, np.arange(count) % 28] = 255
        for kind, array in (
            ("images-idx3", pictures),
            ("labels-idx1", (first + np.arange(count) % 26).astype(np.uint8)),
        ):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
            path = folder / f"{prefix}{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(head + array.tobytes(), compresslevel=1))


@pytest.mark.slow
def test_the_official_letters_are_turned_upright(bare: Path) -> None:
    letters_in(bare / "emnist_letters", "emnist-letters-", (124_800, 20_800), first=1)
    letters = data.load("emnist_letters", bare, download=False)
    assert letters.name == "emnist_letters"
    assert letters.inputs[:30].nonzero().tolist() == [[i, 0, i % 28, 2] for i in range(30)]
    assert letters.test_inputs[27].nonzero().tolist() == [[0, 27, 2]]
    assert letters.targets[:27].tolist() == [*range(26), 0]
    assert letters.test_targets.bincount().tolist() == [800] * 26


def test_letters_of_a_mixed_form_are_refused(bare: Path) -> None:
    letters_in(bare / "emnist_letters", "", (52_000, 20_800), first=1)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz: holds labels from 1 to 26 instead of 0 to 25"):
        data.load("emnist_letters", bare, download=False)
    (bare / "emnist_letters/train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is missing beside train-images-idx3-ubyte\.gz"):
        data.load("emnist_letters", bare, download=False)
    (bare / "emnist_letters/train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"emnist-letters-train-images-idx3-ubyte\.gz is missing; .*: take the folder"):
        data.load("emnist_letters", bare)


@pytest.mark.slow
def test_the_jpeg_copies_of_cifar10_are_all_there_and_shuffled(data_dir: Path) -> None:
    copies = real("cifar10", data_dir)
    assert copies.name == "cifar10_jpeg"  # not to be taken for the original pixels
    assert copies.inputs.shape == (50_000, 3, 32, 32)
    assert copies.inputs.is_contiguous()
    assert copies.targets.bincount().tolist() == [5000] * 10
    assert copies.test_targets.bincount().tolist() == [1000] * 10
    assert copies.targets[:100].bincount().min() > 0
    values = torch.arange(256, dtype=torch.float64) / 255
    shares = torch.stack([copies.inputs[:, c].flatten().bincount(minlength=256) / 51_200_000 for c in range(3)])
    means = shares.double() @ values
    assert copies.mean == pytest.approx(means.tolist(), abs=1e-4)
    assert copies.std == pytest.approx((shares.double() @ values**2 - means**2).sqrt().tolist(), abs=1e-4)
    # np.asarray(Image.open(io.BytesIO(jpeg[: offset[1]]))): [0, 0] is (200, 202, 197), [31, 31] is (236, 236, 238);
    # decoders may differ by a little.
    airplanes = copies.inputs[copies.targets == 0].int()
    near = (airplanes[:, :, 0, 0] - torch.tensor([200, 202, 197])).abs().amax(1) <= 3
    near &= (airplanes[:, :, 31, 31] - torch.tensor([236, 236, 238])).abs().amax(1) <= 3
    assert near.any()


def test_shakespeare_is_cut_by_role(data_dir: Path) -> None:
    # roles = {}
    # for b in re.split(r"\n\n+", text.strip("\n")):
    #     name, _, speech = b.partition("\n"); roles.setdefault(name.rstrip(":"), []).append(speech)
    # k = {n: "\n".join(s for s in v if s) for n, v in roles.items() if sum(map(len, v)) >= 1000}
    # [sum((round(.8 * len(t)) - 1) // 80 for t in k.values()), sum((len(t) - round(.8 * len(t)) - 1) // 80 for ...)]
    plays = real("shakespeare", data_dir)
    letters = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    assert plays.groups is not None
    assert (plays.inputs.shape, plays.targets.shape) == ((9691, 80), (9691, 80))
    assert plays.test_inputs.shape == (2370, 80)
    assert plays.inputs.dtype == plays.targets.dtype == plays.groups.dtype == torch.int64
    assert plays.num_classes == 65
    assert int(plays.groups.max()) == 140
    assert (
        "".join(letters[i] for i in plays.inputs[0])
        == ("Before we proceed any further, hear me speak.\nYou are all resolved rather to die")[:80]
    )
    assert torch.equal(plays.inputs[:, 1:], plays.targets[:, :-1])
    assert int(plays.targets[0, -1]) == int(plays.inputs[1, 0])  # the pieces of a role follow one another
    largest = Natural()(plays.targets, plays.groups, 5, seed=0)
    assert sorted(map(len, largest), reverse=True) == [376, 340, 321, 255, 255]


# ---- bad files ----------------------------------------------------------------------------


def idx_file(path: Path, body: bytes, magic: bytes = b"\0\0\x08\x01", count: int = 4) -> Path:
    path.write_bytes(gzip.compress(magic + count.to_bytes(4, "big") + body))
    return path


def test_an_idx_file_is_read(tmp_path: Path) -> None:
    assert read_idx(idx_file(tmp_path / "a.gz", b"\x05\x00\x09\xff"), (4,)).tolist() == [5, 0, 9, 255]


@pytest.mark.parametrize(
    ("body", "magic", "count", "says"),
    [
        (b"abc", b"\0\0\x08\x01", 4, "holds 3 values instead of the 4"),
        (b"abcde", b"\0\0\x08\x01", 4, "more than the 12 bytes"),
        (b"abcd", b"\0\0\x08\x03", 4, "begins with 00000803 instead of 00000801"),
        (b"abcd", b"\0\0\x0d\x01", 4, "not an IDX file of bytes"),
        (b"abcde", b"\0\0\x08\x01", 5, "more than the 12 bytes"),
        (b"abc", b"\0\0\x08\x01", 3, r"shape \(3,\) instead of \(4,\)"),
    ],
)
def test_a_wrong_idx_file_is_named(tmp_path: Path, body: bytes, magic: bytes, count: int, says: str) -> None:
    with pytest.raises(DataError, match=rf"labels\.gz: .*{says}"):
        read_idx(idx_file(tmp_path / "labels.gz", body, magic, count), (4,))


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    path = idx_file(tmp_path / "labels.gz", b"abcd")
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(DataError, match=r"labels\.gz: the file is truncated"):
        read_idx(path, (4,))


@pytest.mark.parametrize("content", [b"", b"<html>no such page</html>", b"\x1f\x8b\x08\x00garbage garbage garbage"])
def test_a_file_that_is_not_gzip_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"labels\.gz: "):
        read_idx(path, (4,))


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds the label 10"):
        mnist_module._labels(idx_file(tmp_path / "labels.gz", bytes([1, 2, 3, 10])), 4)


def test_another_text_is_not_taken_for_shakespeare(bare: Path) -> None:
    (bare / "shakespeare").mkdir()
    (bare / "shakespeare/input.txt").write_text("First Citizen:\nBefore we proceed")
    with pytest.raises(DataError, match=r"input\.txt: holds 32 characters, 19 distinct, instead of 1,115,394 and 65"):
        data.load("shakespeare", bare, download=False)


# ---- CIFAR-10 -----------------------------------------------------------------------------

PIXELS = bytes(range(256)) * 24  # two pictures of 3,072 bytes


def python2_batch(labels: bytes = b"K\x06K\x09", pixels: bytes = PIXELS) -> bytes:
    """A batch of two pictures, written opcode by opcode as Python 2 did for the original files."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x02M\x00\x0c\x86" + dtype + b"\x89T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
    return b"\x80\x02}(U\x0bbatch_labelU\x05trainU\x06labels](" + labels + b"eU\x04data" + array + state + b"u."


def test_a_batch_of_python_2_is_read() -> None:
    images, labels = read_batch(python2_batch(), 2, "batch")
    assert images.shape == (2, 3, 32, 32)
    assert images.flatten().tolist() == list(PIXELS)
    assert labels.tolist() == [6, 9]


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_batch_written_by_python_3_is_read(protocol: int, order: str) -> None:
    array = np.array(np.frombuffer(PIXELS, np.uint8).reshape(2, 3072), order=order)  # type: ignore[call-overload]
    images, labels = read_batch(pickle.dumps({"data": array, "labels": [0, 1]}, protocol), 2, "batch")
    assert images.flatten().tolist() == list(PIXELS)
    assert labels.tolist() == [0, 1]


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


def test_a_batch_that_asks_for_a_program_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    attack = pickle.dumps({"data": Attack(tmp_path / "seen"), "labels": [0, 1]})
    with pytest.raises(DataError, match=r"data_batch_1: refused.*asks for posix\.system"):
        read_batch(attack, 2, "data_batch_1")
    assert not (tmp_path / "seen").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "refused"),
        (b"\x80\x02", "refused"),
        (python2_batch()[:-200], "refused"),
        (pickle.dumps([1, 2]), "holds a list instead of a dict"),
        (pickle.dumps({"data": b"xx", "labels": [0, 1]}), "data are not 2 rows"),
        (pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}, 2), "data are not 2 rows"),
        (pickle.dumps({"data": np.array([0, None]), "labels": [0, 1]}, 2), "data are not 2 rows"),
        (python2_batch(pixels=PIXELS[:-1]), "data are not 2 rows"),
        (python2_batch(labels=b"K\x06"), "labels are not 2 integers"),
        (python2_batch(labels=b"K\x06K\x0a"), "labels are not 2 integers from 0 to 9"),
    ],
)
def test_a_wrong_batch_is_named(content: bytes, says: str) -> None:
    with pytest.raises(DataError, match=rf"data_batch_1: .*{says}"):
        read_batch(content, 2, "data_batch_1")


def archive(path: Path, names: tuple[str, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for i, name in enumerate(names):
            content = python2_batch(labels=bytes([ord("K"), i, ord("K"), 9]))
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_the_archive_and_the_folder_of_batches_give_the_original_set(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "_PER_BATCH", 2)
    archive(bare / "cifar10/cifar-10-python.tar.gz", cifar._BATCHES)
    packed = data.load("cifar10", bare, download=False)
    assert packed.name == "cifar10"
    assert packed.inputs.shape == (10, 3, 32, 32)
    assert packed.targets.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert packed.test_targets.tolist() == [5, 9]

    with tarfile.open(bare / "cifar10/cifar-10-python.tar.gz") as tar:
        tar.extractall(
            bare / "other/cifar10", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )  # Python 3.11.4 has it
    unpacked = data.load("cifar10", bare / "other/cifar10", download=False)  # a folder named after the set
    assert torch.equal(packed.inputs, unpacked.inputs)
    assert torch.equal(packed.targets, unpacked.targets)


def test_an_archive_that_is_cut_or_lacks_a_batch_is_named(bare: Path) -> None:
    path = bare / "cifar10/cifar-10-python.tar.gz"
    archive(path, cifar._BATCHES[:5])
    with pytest.raises(DataError, match=r"tar\.gz: does not hold test_batch"):
        data.load("cifar10", bare, download=False)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"tar\.gz: not a readable tar\.gz archive"):
        data.load("cifar10", bare, download=False)


def jpeg(color: tuple[int, int, int], side: int = 32) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new("RGB", (side, side), color).save(out, "JPEG")
    return out.getvalue()


def npz(path: Path, pictures: list[bytes], labels: list[int], **other: object) -> Path:
    arrays = {
        "jpeg": np.frombuffer(b"".join(pictures), np.uint8),
        "offset": np.cumsum([0, *map(len, pictures)]),
        "label": np.array(labels, np.uint8),
    }
    np.savez(path, **{**arrays, **other})  # type: ignore[arg-type]
    return path


def test_jpeg_pictures_are_read_in_order(tmp_path: Path) -> None:
    images, labels = cifar.read_jpegs(npz(tmp_path / "a.npz", [jpeg((255, 0, 0)), jpeg((0, 0, 255))], [3, 1]), 2)
    assert images.shape == (2, 3, 32, 32)
    assert images[0, :, 5, 5].tolist() == pytest.approx([255, 0, 0], abs=3)
    assert images[1, :, 5, 5].tolist() == pytest.approx([0, 0, 255], abs=3)
    assert labels.tolist() == [3, 1]


def test_a_wrong_jpeg_file_is_named(tmp_path: Path) -> None:
    path, red = tmp_path / "a.npz", jpeg((255, 0, 0))
    for arrays, says in [
        (([red], [3]), "holds 1 labels and 1 pictures instead of 2"),
        (([red, red], [3, 10]), "label uint8 from 0 to 9"),
        (([red, red[:300]], [3, 1]), "picture 1 cannot be read"),
        (([red, b"GIF89a"], [3, 1]), "picture 1 cannot be read"),
        (([red, jpeg((255, 0, 0), side=64)], [3, 1]), r"picture 1 cannot be read \(\(64, 64\) RGB"),
    ]:
        with pytest.raises(DataError, match=rf"a\.npz: .*{says}"):
            cifar.read_jpegs(npz(path, *arrays), 2)
    with pytest.raises(DataError, match="offsets do not cut"):
        cifar.read_jpegs(npz(path, [red, red], [3, 1], offset=np.array([0, 900, 4])), 2)
    with pytest.raises(DataError, match="not a readable npz"):
        cifar.read_jpegs(npz(path, [red, red], [3, 1], label=np.array([Attack(tmp_path / "seen")])), 2)
    assert not (tmp_path / "seen").exists()
    for content in (path.read_bytes()[:100], b"", b"no archive"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.npz: not a readable npz"):
            cifar.read_jpegs(path, 2)


# ---- where files are found ----------------------------------------------------------------


def test_the_folder_given_comes_before_the_environment_and_the_cache(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THINWIRE_DATA", str(bare / "environment"))
    source = files.Official("a.gz", "http://127.0.0.1:9/a.gz", "")
    for folder in ("cache/thinwire", "environment", "given"):
        path = bare / folder / "mnist/a.gz"
        path.parent.mkdir(parents=True)
        path.touch()
        assert files.obtain("mnist", source, bare / "given", download=False) == path


def test_a_missing_file_is_answered_with_where_to_put_it(bare: Path) -> None:
    with pytest.raises(DataError) as caught:
        data.load("mnist", bare / "my data", download=False)
    assert str(caught.value) == (
        f"mnist: train-images-idx3-ubyte.gz is missing; put it at {bare}/my data/mnist/train-images-idx3-ubyte.gz "
        f"(looked in {bare}/my data/mnist, {bare}/cache/thinwire/mnist); it was not downloaded from "
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz, because download is off"
    )


def test_files_of_another_set_with_the_same_names_are_not_taken(bare: Path) -> None:
    (bare / "fashion_mnist").mkdir()
    (bare / "fashion_mnist/train-images-idx3-ubyte.gz").touch()
    with pytest.raises(DataError, match=r"mnist: train-images-idx3-ubyte\.gz is missing"):
        data.load("mnist", bare / "fashion_mnist", download=False)


def test_a_download_lands_in_the_cache_and_is_made_once(served: tuple[Path, str]) -> None:
    folder, address = served
    (folder / "a.gz").write_bytes(b"content")
    source = files.Official("a.gz", address + "a.gz", hashlib.sha256(b"content").hexdigest())
    path = files.obtain("mnist", source, None, download=True)
    assert path == folder.parent / "cache/thinwire/mnist/a.gz"
    assert path.read_bytes() == b"content"
    assert [other.name for other in path.parent.iterdir()] == ["a.gz"]
    (folder / "a.gz").unlink()
    assert files.obtain("mnist", source, None, download=True) == path


def test_a_download_with_another_checksum_leaves_nothing(
    served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"something else")
    monkeypatch.setattr(mnist_module, "MNIST_ADDRESS", address)
    with pytest.raises(DataError, match=r"is missing; put it at .*its sha256 is f41f3fa6.* instead of 440fcabf"):
        data.load("mnist")
    assert list((folder.parent / "cache/thinwire/mnist").iterdir()) == []


def test_a_failed_download_says_why_and_leaves_nothing(served: tuple[Path, str]) -> None:
    folder, address = served
    source = files.Official("a.gz", address + "a.gz", "")
    with pytest.raises(DataError, match=r"could not be downloaded from http://127.* \(HTTP Error 404"):
        files.obtain("mnist", source, None, download=True)
    assert list((folder.parent / "cache/thinwire/mnist").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_one_clear_error(served: tuple[Path, str]) -> None:
    folder, address = served
    (folder.parent / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"a\.gz is missing; put it at .*could not be downloaded"):
        files.obtain("mnist", files.Official("a.gz", address + "a.gz", ""), None, download=True)


@pytest.mark.slow
def test_a_set_is_downloaded_checked_and_read(
    data_dir: Path, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    original = real("shakespeare", data_dir)
    (folder / "input.txt").write_bytes(gzip.decompress((data_dir / "shakespeare/input.txt.gz").read_bytes()))
    elsewhere = dataclasses.replace(shakespeare_module.TEXT, address=address + "input.txt")
    monkeypatch.setattr(shakespeare_module, "TEXT", elsewhere)
    assert torch.equal(data.load("shakespeare").inputs, original.inputs)


def test_a_missing_package_is_answered_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("sklearn", "sklearn.datasets", "flwr_datasets.partitioner"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r'the set digits needs sklearn .*pip install "thinwire\[data\]"'):
        data.load("digits")
    with pytest.raises(ImportError, match=r'flwr_datasets .*pip install "thinwire\[data\]"'):
        Shards(2)(LABELS, None, 2, seed=0)


# ---- splits -------------------------------------------------------------------------------

LABELS = torch.arange(2000) * 7 % 10  # 200 of each of ten classes
OWNERS = torch.arange(2000) % 40
FORTY = Sites(tuple(range(1, 41)))
SPLITS = [
    *(IID(), Dirichlet(0.5), Pathological(3), Shards(2), Natural(), Similarity(0.1)),
    *(Users(), Users("reddit", alpha=0.2), Users(0.0), FORTY, Sites(FORTY.like, alpha=0.05)),
]


@pytest.mark.parametrize("split", SPLITS, ids=repr)
def test_a_split_deals_every_example_once_and_again_the_same(split: data.Split) -> None:
    parts = split(LABELS, OWNERS, 40, seed=5)
    assert len(parts) == 40
    assert {part.dtype for part in parts} == {torch.int64}
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(2000))
    again = split(LABELS, OWNERS, 40, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    if split != Natural():
        other = split(LABELS, OWNERS, 40, seed=6)
        assert not all(torch.equal(a, b) for a, b in zip(parts, other, strict=True))


@pytest.mark.parametrize("split", [*SPLITS, Dirichlet(0.1)], ids=repr)
def test_a_split_touches_no_global_generator_and_prints_nothing(
    split: data.Split, capfd: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    split(LABELS, OWNERS, 40, seed=5)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Specifying null_placement")  # flwr-datasets sorts in an older way
def test_flowers_splits_are_flowers() -> None:
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner, ShardPartitioner

    for split, partitioner in (
        (Dirichlet(0.5), DirichletPartitioner(7, "label", alpha=0.5, min_partition_size=1, seed=3)),
        (Shards(2), ShardPartitioner(7, "label", num_shards_per_partition=2, seed=3)),
    ):
        partitioner.dataset = datasets.Dataset.from_dict({"label": LABELS.tolist(), "index": list(range(2000))})
        theirs = [partitioner.load_partition(k)[:]["index"] for k in range(7)]
        assert [part.tolist() for part in split(LABELS, None, 7, seed=3)] == theirs


@pytest.mark.slow
def test_a_hundred_thousand_clients_are_dealt_to() -> None:
    owners = torch.arange(100_000).repeat(2)
    assert torch.stack(Natural()(owners, owners, 100_000, seed=0))[70_000].tolist() == [70_000, 170_000]
    assert torch.stack(IID()(owners, None, 100_000, seed=0)).unique().numel() == 200_000


def test_a_holdout_is_drawn_anew_for_every_client_and_seed() -> None:
    drawn = set()
    for seed in (0, 1):
        whole, cut = (standard("digits", clients=5, split=IID(), seed=seed, holdout=h) for h in (0.0, 0.2))
        assert cut.client_tests is not None
        for task, test in zip(whole.tasks, cut.client_tests, strict=True):
            drawn.add(tuple(torch.isin(task.indices[:280], test.indices).tolist()))
    assert len(drawn) == 10


def test_the_name_of_a_split_is_short() -> None:
    assert [repr(split) for split in (IID(), Dirichlet(), Dirichlet(0.5, min_examples=10), Shards(3))] == [
        "IID()",
        "Dirichlet(0.1)",
        "Dirichlet(0.5, min_examples=10)",
        "Shards(3)",
    ]


def test_iid_parts_have_equal_sizes_and_all_classes() -> None:
    parts = IID()(LABELS, None, 7, seed=0)
    assert sorted(map(len, parts)) == [285, 285, 286, 286, 286, 286, 286]
    assert all(len(torch.unique(LABELS[part])) == 10 for part in parts)


@pytest.mark.slow
def test_dirichlet_draws_what_numpy_draws() -> None:
    # r = np.random.default_rng(1); parts = [0] * 5
    # for c in range(10):
    #     cuts = (np.cumsum(r.dirichlet([0.5] * 5)) * 6000).astype(int)[:-1]
    #     for i, q in enumerate(np.split(np.arange(6000), cuts)): parts[i] += len(q)
    parts = Dirichlet(0.5)(torch.arange(60_000) % 10, None, 5, seed=1)
    assert [len(part) for part in parts] == [7249, 14996, 11927, 11945, 13883]


def test_dirichlet_keeps_its_least_number_of_examples() -> None:
    assert min(map(len, Dirichlet(0.5, min_examples=60)(LABELS, None, 10, seed=3))) >= 60


def test_a_dirichlet_draw_that_starves_clients_names_them() -> None:
    with pytest.raises(
        ValueError, match=r"Dirichlet\(0\.01\) found no .* of 40 clients \(.*clients 0, .* take a larger"
    ):
        Dirichlet(0.01)(LABELS, None, 40, seed=0)


def test_pathological_clients_hold_exactly_their_number_of_classes() -> None:
    parts = Pathological(3)(LABELS, None, 20, seed=2)
    assert [len(torch.unique(LABELS[part])) for part in parts] == [3] * 20
    assert LABELS[torch.cat(parts)].bincount().tolist() == [200] * 10


def test_shards_are_pure_and_equal_where_the_classes_divide() -> None:
    parts = Shards(2)(LABELS, None, 20, seed=2)
    assert [len(part) for part in parts] == [100] * 20
    assert max(len(torch.unique(LABELS[part])) for part in parts) == 2


def test_natural_takes_the_largest_owners_in_their_order() -> None:
    owners = torch.tensor([3, 3, 1, 1, 1, 0, 2, 2])  # sizes: 1 of owner 0, then 3, 2, 2
    parts = Natural()(torch.zeros(8), owners, 2, seed=0)
    assert [part.tolist() for part in parts] == [[2, 3, 4], [6, 7]]
    with pytest.raises(ValueError, match="has 4 owners and cannot make 5 clients"):
        Natural()(torch.zeros(8), owners, 5, seed=0)
    with pytest.raises(ValueError, match="needs a data set with groups"):
        Natural()(torch.zeros(8), None, 2, seed=0)


def test_natural_draws_owners_and_leaves_out_small_ones() -> None:
    owners = torch.arange(100).repeat_interleave(torch.arange(1, 101))  # owner k has k + 1 examples
    labels = torch.zeros(len(owners))
    parts = [Natural(51, draw=True)(labels, owners, 20, seed=seed) for seed in range(40)]
    sizes = torch.tensor([[len(part) for part in some] for some in parts])
    assert (sizes.min(), sizes.max()) == (51, 100)  # of 50 owners, some of whom 40 draws of 20 leave out only by chance
    assert abs(sizes.double().mean() - 75.5) < 4 * 14.43 / 800**0.5  # uniform on 51 to 100: none is preferred
    assert all(len(set(owners[part].tolist())) == 1 for part in parts[0])
    with pytest.raises(ValueError, match=r"Natural\(51\) has 50 owners and cannot make 51"):
        Natural(51)(labels, owners, 51, seed=0)


def test_similarity_mixes_its_share_and_sorts_the_rest() -> None:
    parts = Similarity(0.2)(LABELS, None, 10, seed=4)
    assert [len(part) for part in parts] == [200] * 10
    mixed = torch.cat([part[:40] for part in parts])  # 2,000 * 0.2 / 10 to each client
    rest = LABELS[torch.cat([part[40:] for part in parts])]
    assert torch.equal(rest, rest.sort().values)
    assert LABELS[mixed].bincount(minlength=10).min() > 20  # 40 of each class expected
    assert all(len(torch.unique(LABELS[part[:40]])) >= 7 for part in parts)


def test_similarity_of_zero_gives_pure_clients() -> None:
    parts = Similarity(0.0)(LABELS, None, 10, seed=4)
    assert [torch.unique(LABELS[part]).tolist() for part in parts] == [[k] for k in range(10)]


def test_a_client_without_an_example_is_named() -> None:
    # Three examples are mixed and three sorted: both go to the first three clients.
    with pytest.raises(
        ValueError, match=r"Similarity\(0\.5\) leaves clients 3, 4, 5 of 6 without an example \(6 in all\)"
    ):
        Similarity(0.5)(torch.arange(6), None, 6, seed=0)


@pytest.mark.parametrize(
    ("split", "num_clients", "says"),
    [
        (IID(), 2001, "2,000 examples cannot give each of 2001 clients one"),
        (IID(), 0, "num_clients must be at least 1"),
        (Pathological(11), 5, r"Pathological\(11\) asks for more classes a client than the 10"),
        (Pathological(9), 1000, r"Pathological\(9\) gives a class to more of the 1000 clients than it has examples"),
        (Shards(3), 1000, r"Shards\(3\) for 1000 clients needs 3,000 examples or more"),
    ],
)
def test_an_impossible_split_says_what_to_change(split: data.Split, num_clients: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        split(LABELS, None, num_clients, seed=0)


def test_texts_cannot_be_dealt_by_label_but_can_be_dealt_at_random() -> None:
    texts = torch.zeros(30, 80, dtype=torch.int64)
    assert sum(map(len, IID()(texts, None, 4, seed=0))) == 30
    for split in (Dirichlet(), Pathological(), Shards(), Similarity()):
        with pytest.raises(ValueError, match=r"deals by label and needs one an example, not \(30, 80\)"):
            split(texts, None, 4, seed=0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Dirichlet(0.0), "alpha must be positive"),
        (lambda: Dirichlet(float("nan")), "alpha must be positive"),
        (lambda: Dirichlet(float("inf")), r"alpha is 1e9 at most; IID\(\) gives equal shares"),
        (lambda: Users(alpha=float("inf")), "alpha"),
        (lambda: Dirichlet(min_examples=0), "min_examples"),
        (lambda: Pathological(0), "classes"),
        (lambda: Shards(0), "per_client"),
        (lambda: Similarity(1.5), "share"),
        (lambda: Natural(0), "min_examples"),
        (lambda: Users("femnists"), "did you mean femnist"),
        (lambda: Users(-0.5), "is not negative"),
        (lambda: Users(float("inf")), "inf"),
        (lambda: Users(alpha=0.0), "alpha must be positive"),
        (lambda: Sites("isic"), "known are heart_disease, isic2019"),
        (lambda: Sites(()), "one example or more"),
        (lambda: Sites((3, 0)), "one example or more"),
    ],
)
def test_a_setting_out_of_range_is_refused_at_once(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()  # type: ignore[operator]


def test_a_holdout_cuts_the_share_and_leaves_one_example_for_training() -> None:
    indices = torch.arange(100, 150)
    train, test = holdout(indices, 0.2, seed=1)
    assert (len(train), len(test)) == (40, 10)
    assert torch.equal(torch.cat([train, test]).sort().values, indices)
    assert [part.tolist() for part in holdout(torch.tensor([7]), 0.9, seed=1)] == [[7], []]
    assert [len(part) for part in holdout(torch.tensor([7, 8]), 0.9, seed=1)] == [1, 1]
    assert torch.equal(holdout(indices, 0.2, seed=1)[1], test)
    with pytest.raises(ValueError, match="without examples"):
        holdout(indices[:0], 0.2, seed=1)
    with pytest.raises(ValueError, match="share must be"):
        holdout(indices, 1.0, seed=1)
