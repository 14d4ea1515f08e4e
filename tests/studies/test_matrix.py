"""What goes with what, as the code says it."""

from __future__ import annotations

import json

import pytest

from processes import thinwire
from thinwire.studies.matrix import Pair, show


@pytest.mark.slow
def test_the_matrix_says_what_the_code_says_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    # In a process of its own: here the checked annotations would speak first.
    done = thinwire("methods", "--matrix", "--json")
    assert done.returncode == 0, done.stderr
    pairs = json.loads(done.stdout)["pairs"]
    cells = {(p["outer"], p["inner"], p["role"]): p["reason"] for p in pairs}
    assert len(cells) == len(pairs)
    together = ["FedProx", "MOON", "FedMut", "FedACG", "FedNTD", "FedDC", "FedGen", "SCAFFOLD", "FedAvg"]
    assert [cells["LUAR", name, "algorithm"] for name in together] == [""] * 9
    assert {name for name in together if not cells["FLSS", name, "algorithm"]} == {
        "FedAvg",
        "FedProx",
        "MOON",
        "FedNTD",
    }
    assert cells["LUAR", "LUAR", "algorithm"].startswith("LUAR over LUAR: the outer one would recycle")
    assert "has none" in cells["LUAR", "FLSS", "algorithm"]
    assert [cells["Detached", name, "algorithm"] for name in (*together, "LUAR", "FLSS", "PruneFL", "Ditto")] == [
        ""
    ] * 13
    assert "so they cannot begin ahead" in cells["Detached", "FetchSGD", "algorithm"]
    assert "there is one lam" in cells["Detached", "Detached", "algorithm"]
    assert "h, the mean of the gradients" in cells["LUAR", "FedDyn", "algorithm"]
    assert cells["", "TopK", "up"] == cells["ErrorFeedback", "TopK", "up"] == cells["EF21", "TopK", "down"] == ""
    assert cells["", "TopK", "down"].startswith("down=TopK(0.01) cannot carry a broadcast")
    assert cells["", "Half", "personal"] == cells["EF21", "TopK", "personal"] == ""
    assert cells["", "TopK", "personal"].startswith("personal=TopK(0.01) cannot carry a message to one client")
    assert cells["", "PerClient", "down"] == cells["PerClient", "TransformCoding", "down"] == ""
    assert "PerClient goes around other links, not into them" in cells["Layerwise", "PerClient", "down"]
    assert "(a contraction)" in cells["ErrorFeedback", "EF21", "up"]
    assert cells["LBGM", "ErrorFeedback", "up"] == ""
    for name in ("FedAvg", "SCAFFOLD", "LUAR", "FLSS", "Intrinsic", "FetchSGD"):
        assert [cells[rule, name, "aggregate"] for rule in ("Median", "Krum", "Bulyan", "CenteredClip")] == [""] * 4
    assert "takes each client's inner/update by itself" in cells["Median", "SoftPull", "aggregate"]
    assert cells["Median", "FedPM", "aggregate"] == ""
    assert "is a value as it is" in cells["NormClip", "FedPM", "aggregate"]
    assert cells["RhoFlip", "LBGM", "attack"] == cells["ALIE", "TopK", "attack"] == ""
    late = {name for name in (*together, "LUAR", "FLSS", "Ditto", "FT") if not cells["Buffered", name, "buffer"]}
    assert late == {"FedAvg", "FedProx", "MOON", "FedNTD", "SCAFFOLD", "Ditto", "FT"}
    assert "means something else later" in cells["Buffered", "LUAR", "buffer"]
    added = {
        name for name in (*together, "LUAR", "FLSS", "Intrinsic", "FedPM") if not cells["SecureSum", name, "secret"]
    }
    one = {"FedProx", "MOON", "FedMut", "FedACG", "FedNTD", "FedDC", "FedAvg", "LUAR", "FLSS", "Intrinsic", "FedPM"}
    assert added == one
    assert "control is not averaged" in cells["SecureSum", "SCAFFOLD", "secret"]
    assert cells["SecureSum", "Privacy", "beside"] == ""
    assert "would tell their losses" in cells["SecureSum", "PowerOfChoice", "beside"]
    for name in ("Median", "Krum", "Buffered"):
        assert "looks at each reply, and the server sees none of them" in cells["SecureSum", name, "beside"]
    assert "is an attack on LBGM, which no uplink is" in cells["RhoFlip", "Dense", "attack"]
    # Nothing is refused for a reason that is not the methods' own.
    known = (
        "contraction",
        "goes around",
        "goes inside",
        "does not go around",
        "products already",
        "cannot carry",
        "receiver has",
        "memory itself",
        "models of their own",
    )
    known = (
        *known,
        "cannot begin ahead",
        "there is one lam",
        "by itself",
        "is a value as it is",
        "is an attack on",
        "a sum is all that the server learns",
        "the server would see",
        "looks at each reply",
        "would tell their losses",
        "nothing to begin ahead by",
        "else later",
        "goes by no client's uplink",
    )
    known = (*known, "Codec such as Half() is expected", "has none", "PerClient is for broadcasts")
    unknown = [
        r
        for r in cells.values()
        if r and not any(word in r for word in (*known, "LUAR over", "SoftPull over", "SoftPull mixes"))
    ]
    assert unknown == [], sorted(set(unknown))
    show([Pair(**pair) for pair in pairs])
    shown = capsys.readouterr().out
    for once in ("LUAR over LUAR", "cannot carry a broadcast", "ErrorFeedback needs a link", "FLSS goes around FedAvg"):
        assert shown.count(once) == 1
