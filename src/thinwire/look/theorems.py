"""The quantities of the papers' theorems, each as a function of what a run recorded and of what was measured of it.

LBGM: Azam et al., ICLR 2022, Theorem 1. FedLUAR: Kim et al., NeurIPS 2025, Equation 6, Lemma 3.1, Theorem 3.2. FLSS:
"Federated Learning in Streaming Subspace", Proposition 3.4.1, Theorem 3.4.1. DOMO and DEF: An Xu, PhD thesis,
University of Pittsburgh, 2023, Lemma 4.4.2, Section 4.4 and D.2.2; Assumptions 2.3.1 and 2.3.2, Equation 2-9, Theorem
2.4.1. Intrinsic compression: Melas-Kyriazi, Wang, 2021, Definition 3.2, Theorems 3.3 to 3.5.

Differences from the papers: a minimum that nobody knows (F*, g*) is taken as 0, below which no loss here lies. The
smoothness and the other constants are those of :mod:`.constants`, from below. A learning rate and a number of steps are
means over the run. Lemma 4.4.2 as printed lacks a factor alpha / (1 - mu_s) of its last term, which the proof (D-11)
has: here it is there, and so is the term of beta, which is zero at the thesis' beta = alpha mu_s / (1 - mu_s).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..params import Layout
from .constants import Constants, square


class Quantity(NamedTuple):
    """A row: what a theorem speaks of, and its value in the run."""

    theorem: str
    name: str  # the paper's letter
    meaning: str
    value: float | None  # None where the run does not show it
    beside: float | None = None  # what it is compared with
    how: str = ""  # what that is


class Steps(NamedTuple):
    """A run's training: T rounds, tau local steps a round, at the rate eta."""

    rounds: int
    tau: float
    eta: float


def steps_of(lines: Sequence[Mapping[str, Any]]) -> Steps | None:
    """The means over the rounds whose change is the clients' own; None where there are none."""
    own = [line["change"] for line in lines if "rates" in line.get("change", {})]
    if not own:
        return None
    tau = statistics.fmean(change["steps"] for change in own)
    return Steps(len(lines), tau, statistics.fmean(change["rates"] for change in own) / tau)


# -- LBGM ---------------------------------------------------------------------


def largest_loss(lines: Sequence[Mapping[str, Any]]) -> float:
    """Delta^2: the largest ||d||^2 sin^2 of a client whose update was recycled, over its recycled layers."""
    losses = [0.0]
    for line in lines:
        own: dict[tuple[int, str], float] = {}
        for look in line.get("looks", ()):
            if look["recycled"] and look["sin2"] is not None and look.get("rates"):
                who = look["client"], look["field"]
                own[who] = own.get(who, 0.0) + (look["norm"] / look["rates"]) ** 2 * look["sin2"]
        losses += own.values()
    return max(losses)


def lbgm(constants: Constants, steps: Steps, delta2: float) -> list[Quantity]:
    """Theorem 1, with Upsilon^2 = 1 in Assumption 3, so that Gamma^2 is all that clients differ by."""
    total, tau, eta = steps
    beta, noise, apart = constants.smoothness, constants.noise, constants.apart()
    parts = (
        ("8 (F0 - F*) / (eta tau T)", 8 * constants.loss(constants.points[0]) / (eta * tau * total)),
        ("16 Delta^2", 16 * delta2),
        ("8 eta beta sigma^2", 8 * eta * beta * noise),
        ("5 eta^2 beta^2 sigma^2 (tau - 1)", 5 * (eta * beta) ** 2 * noise * (tau - 1)),
        ("20 eta^2 beta^2 Gamma^2 tau (tau - 1)", 20 * (eta * beta) ** 2 * apart * tau * (tau - 1)),
    )
    most = min(1 / (2 * tau), 1 / (tau * math.sqrt(10)))
    name = "LBGM, Theorem 1"
    return [
        Quantity(name, "Delta^2", "largest ||d||^2 sin^2 that was recycled", delta2, eta, "eta (Corollary 1)"),
        Quantity(name, "beta", "smoothness of clients' losses", beta),
        Quantity(name, "sigma^2", "variance of a mini-batch's gradient", noise),
        Quantity(name, "Gamma^2", "mean ||grad F_k - grad F||^2 (Upsilon^2 = 1)", apart),
        Quantity(name, "eta beta", "rate by smoothness", eta * beta, most, "at most (Equation 45)"),
        *(Quantity(name, term, "a term of bound (3)", value) for term, value in parts),
        Quantity(
            name, "bound (3)", "of the mean ||grad F||^2", sum(v for _, v in parts), constants.mean_square, "measured"
        ),
    ]


# -- FedLUAR ------------------------------------------------------------------


class Recycling(NamedTuple):
    """A round that recycled: n_t in sums of gradients, its share of the length of the whole update, and its age."""

    round: int
    noise: float  # ||n_t||^2
    share: float  # ||n_t|| / ||Delta_t||
    oldest: int  # k: rounds since the oldest of the updates was made


def recycled_noise(lines: Sequence[Mapping[str, Any]], layout: Layout, rows: Sequence[Tensor]) -> list[Recycling]:
    """n_t of Equation 6, from the mean changes of clients, a row [d] for each line with ``change``.

    A recycled layer steps by its change of the last round in which it was sent; n_t is that less its change now.
    """
    own = [line for line in lines if "change" in line]
    sent, recyclings = dict[str, int](), list[Recycling]()
    for t, (line, row) in enumerate(zip(own, rows, strict=True)):
        noise, oldest, now = 0.0, 0, row.double()
        for name, (start, size, _) in layout.spans.items():
            if name not in line["unsent"]:
                sent[name] = t
            elif name in sent:
                before = rows[sent[name]][start : start + size].double()
                noise += square(before - now[start : start + size])
                oldest = max(oldest, line["round"] - own[sent[name]]["round"])
        if oldest and "rates" in line["change"]:
            eta = line["change"]["rates"] / line["change"]["steps"]
            recyclings.append(Recycling(line["round"], noise / eta**2, math.sqrt(noise / (square(now) or 1.0)), oldest))
    return recyclings


def luar(
    constants: Constants, steps: Steps, rounds: Sequence[Recycling], kappas: Sequence[float], strayed: float
) -> list[Quantity]:
    """Equation 6, Lemma 3.1 and Theorem 3.2. ``strayed``: the mean of ||x_t,j^i - x_t||^2 over clients and steps."""
    total, tau, eta = steps
    kappa, smooth = max(kappas, default=0.0), constants.smoothness
    bound = tau**2 * (4 * constants.noise + 8 * constants.farthest + 8 * kappa * constants.mean_square)
    bound += 8 * tau**2 * smooth**2 * strayed
    rate = (1 - 16 * kappa) / (6 * math.sqrt(30) * smooth * tau) if smooth and kappa < 1 / 16 else None
    mean = sum(one.noise for one in rounds) / total
    name = "LUAR, Equation 6"
    return [
        Quantity(name, "||n_t||^2", "mean over all rounds", mean, bound, "at most (Lemma 3.1, by T)"),
        Quantity(name, "||n_t|| / ||Delta_t||", "mean over rounds that recycled", _mean([r.share for r in rounds])),
        Quantity(
            name, "k", "rounds that a recycled update is old, most", float(max((r.oldest for r in rounds), default=0))
        ),
        Quantity("LUAR, Theorem 3.2", "kappa", "largest share of recycled layers", kappa, 1 / 16, "below"),
        Quantity("LUAR, Theorem 3.2", "mean kappa", "over rounds that recycled", _mean(kappas)),
        Quantity("LUAR, Assumption 3", "sigma_L^2", "variance of a mini-batch's gradient", constants.noise),
        Quantity("LUAR, Assumption 3", "sigma_G^2", "largest ||grad F_i - grad F||^2", constants.farthest),
        Quantity("LUAR, Theorem 3.2", "eta", "local learning rate", eta, rate, "at most"),
    ]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


# -- FLSS ---------------------------------------------------------------------


def flss(constants: Constants, steps: Steps, gamma: float, rho: float, sampled: int) -> list[Quantity]:
    """Equation 6: B and C. ``gamma`` is F* - mean F_k*, ``rho`` what R directions leave out, ``sampled`` M."""
    _, tau, eta = steps
    smooth, mu, second = constants.smoothness, constants.convexity, constants.second
    b = tau - tau / (smooth * (tau + 1)) if smooth else None
    noise = (2 + mu) * second * (2 * tau**3 + 3 * tau**2 + tau) / 6
    differ = (2 * smooth * tau**2 + 4 * smooth * tau) * gamma
    left = 2 * (1 + rho) * tau**2 * second / sampled
    limits = [1 / (smooth * (tau + 1))] if smooth else []
    limits += [1 / (mu * b)] if mu and b is not None and b > 0 else []
    name = "FLSS, Theorem 3.4.1"
    return [
        Quantity("FLSS, Assumption 3.4.3", "G^2", "largest mean ||g||^2 of a client's mini-batches", second),
        Quantity("FLSS, Section 3.4", "Gamma", "F* - mean F_k*, as far as descent went", gamma),
        Quantity("FLSS, Proposition 3.4.1", "rho_R", "share of squares after R directions", rho),
        Quantity(name, "L", "smoothness of clients' losses", smooth),
        Quantity(name, "mu", "least curvature on the way; 0: not convex there", mu),
        Quantity(name, "eta", "local learning rate", eta, min(limits, default=None), "at most"),
        Quantity(name, "B", "contraction", b, 0.0, "above"),
        Quantity(name, "C, local steps", "(2 + mu) G^2 (2 tau^3 + 3 tau^2 + tau) / 6", noise),
        Quantity(name, "C, clients", "(2 L tau^2 + 4 L tau) Gamma", differ),
        Quantity(name, "C, subspace", "2 (1 + rho_R) tau^2 G^2 / M", left),
        Quantity(name, "C", "their sum", noise + differ + left),
    ]


# -- DOMO ---------------------------------------------------------------------


class Apart(NamedTuple):
    """A round of P steps: means over p = 0 .. P - 1."""

    inconsistency: float  # ||z - mean x||^2
    unfused: float  # the same of FedAvgSLM-Z, which fuses nothing
    divergence: float  # the mean over clients of ||mean x - x_k||^2


def domo_round(
    ways: Sequence[Sequence[Float[Tensor, " d"]]],
    momentum: Float[Tensor, " d"],
    alpha: float,
    beta: float,
    mu_s: float,
    mu_l: float,
) -> Apart:
    """Lemma 4.4.2 and the divergence, from clients' models after 0 to P steps and the server's momentum M = -eta P m_r.

    With D_p the mean of what clients moved, z - mean x = (alpha mu_s / (1 - mu_s) - beta) M
    + (alpha / (1 - mu_s) - 1) D_p + mu_l alpha / ((1 - mu_l) (1 - mu_s)) (D_p - D_(p-1)), by (D-11).
    """
    means = [torch.stack(list(step)).mean(0) for step in zip(*ways, strict=True)]
    moved = [mean - means[0] for mean in means]
    a, last = alpha / (1 - mu_s), mu_l * alpha / ((1 - mu_l) * (1 - mu_s))
    fused, free, apart = [], [], []
    for p in range(len(means) - 1):
        rest = (a - 1) * moved[p] + last * (moved[p] - moved[max(0, p - 1)])
        fused.append(square((mu_s * a - beta) * momentum + rest))
        free.append(square(mu_s * a * momentum + rest))
        apart.append(statistics.fmean(square(means[p] - way[p]) for way in ways))
    return Apart(statistics.fmean(fused), statistics.fmean(free), statistics.fmean(apart))


def domo(
    constants: Constants, eta: float, tau: int, mu_l: float, beta: tuple[float, float], rounds: Sequence[Apart]
) -> list[Quantity]:
    """Lemma 4.4.2, and the divergence beside the bound of D.2.2 (where clients weigh alike).

    ``beta`` is the one in use, and alpha mu_s / (1 - mu_s), with which the lemma's z follows the model.
    """
    alike = [1 / len(constants.weights)] * len(constants.weights)
    g2 = constants.apart(alike)
    bound = eta**2 / (1 - mu_l) ** 2 * (3 * tau * constants.noise + 9 * tau**2 * g2)
    inconsistent, unfused, diverged = (statistics.fmean(values) for values in zip(*rounds, strict=True))
    return [
        Quantity(
            "DOMO, Lemma 4.4.2", "||z - x||^2", "inconsistency, mean over steps", inconsistent, unfused, "of SLM-Z"
        ),
        Quantity("DOMO, Lemma 4.4.2", "beta", "the share that is fused", *beta, "alpha mu_s / (1 - mu_s)"),
        Quantity("DOMO, D.2.2", "||x - x_k||^2", "divergence, mean over clients and steps", diverged, bound, "at most"),
        Quantity("DOMO, Assumption 4.4.2", "sigma^2", "variance of a mini-batch's gradient", constants.noise),
        Quantity("DOMO, Assumption 4.4.3", "G^2", "mean ||grad f_k - grad f||^2", g2),
    ]


# -- Intrinsic compression ----------------------------------------------------


def intrinsic(
    constants: Constants, reached: Sequence[float], end: float, epochs: int, subspaces: int
) -> list[Quantity]:
    """Definition 3.2 by draws of subspaces, Var(A^T g). ``reached``: the least loss in each; ``end``: the run's."""
    start = constants.loss(constants.points[0])
    shares = sorted(loss / start for loss in reached)
    largest, half = shares[-1], shares[(len(shares) - 1) // 2]
    sketched = max(point.sketched or 0.0 for point in constants.points)
    dense = max(
        sum(
            w * (n + square(g - constants.gradient(p)))
            for w, n, g in zip(constants.weights, p.noise, p.gradients, strict=True)
        )
        for p in constants.points
    )
    name = "Intrinsic, Definition 3.2"
    rows = [
        Quantity(name, "rho", f"delta 0: in all of {len(shares)} subspaces", largest, end / start, "the run's own"),
        Quantity(name, "rho", "delta 1/2: in half of them", half, end / start, "the run's own"),
        Quantity(
            "Intrinsic, Theorem 3.3", "Var(A^T g)", "of a client's mini-batch, largest", sketched, dense, "Var(g)"
        ),
    ]
    if epochs > 1:
        rows.append(
            Quantity(
                "Intrinsic, Theorem 3.5", "rho^E", f"E = {epochs} epochs", largest**epochs, end / start, "the run's own"
            )
        )
    if subspaces > 1:
        ratio = sketched / (constants.mean_square or math.inf)
        rows.append(Quantity("Intrinsic, Theorem 3.4", "C", "Var(A^T g) by the mean ||grad F||^2", ratio, 0.0, "above"))
    return rows


# -- DEF ----------------------------------------------------------------------


def errors_of(lines: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The means over evaluations of mean_k ||e - lambda e_k||^2, and of ||e||^2, which is EF's; None without residuals.

    mean_k ||e - lambda e_k||^2 = (1 - 2 lambda) ||e||^2 + lambda^2 mean_k ||e_k||^2, for e is the mean of the e_k.
    """
    own = [(line["residual"], line["distance"], line.get("lam") or 0.0) for line in lines if "residual" in line]
    if not own:
        return None
    squares = [(1 - 2 * lam) * e**2 + lam**2 * each**2 for each, e, lam in own]
    return statistics.fmean(squares), statistics.fmean(e**2 for _, e, _ in own)


def def_(
    constants: Constants, errors: tuple[float, float], workers: int, lam: float, eta: float, ratio: float | None
) -> list[Quantity]:
    """Equation 2-9 and Theorem 2.4.1, whose bound knows no momentum."""
    noise, whole = constants.noise, constants.whole
    inside = (workers - 1) / workers**2 * noise + (1 / workers - lam) ** 2 * noise + 2 * (1 - lam) ** 2 * whole
    bound = None
    if ratio is not None:  # random blocks keep delta = 1 / ratio of the entries, in the mean
        root = math.inf if ratio == 1 else math.sqrt((1 - 0.5 / ratio) / (1 - 1 / ratio)) - 1
        bound = eta**2 * inside / root**2
    best = (noise / workers + 2 * whole) / (noise + 2 * whole) if noise + 2 * whole else None
    name = "DEF, Theorem 2.4.1"
    return [
        Quantity("DEF, Assumption 2.3.1", "sigma^2", "variance of a worker's gradient", noise),
        Quantity("DEF, Assumption 2.3.2", "M^2", "largest ||grad F||^2", whole),
        Quantity(
            "DEF, Remark",
            "sigma^2 / M^2",
            "noise beside the gradient",
            noise / whole if whole else None,
            0.3,
            "the thesis'",
        ),
        Quantity(
            "DEF, Equation 2-9",
            "||e - lambda e_k||^2",
            "mean over workers and evaluations",
            errors[0],
            errors[1],
            "EF's",
        ),
        Quantity(name, "its bound", "of the mean ||e - lambda e_k||^2", bound, errors[0], "measured"),
        Quantity(name, "lambda", "in use, mean", lam, best, "best by (2-19)"),
    ]
