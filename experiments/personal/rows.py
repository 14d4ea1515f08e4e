"""The methods of ``retina.py``: expressions at a rate, the rates to try, and their rounds."""

from __future__ import annotations

import argparse
from typing import NamedTuple

ADAM = (0.0003, 0.001, 0.003)
SGD = (0.1, 0.3, 1.0)
LAMBDAS = (0.1, 0.3, 0.5, 0.9)  # .7 is the row FedSM


class Row(NamedTuple):
    """A method: its expression, where {adam} and {sgd} train at the rate of a run, and the rates to try."""

    expression: str
    rates: tuple[float, ...] = ADAM
    sites: bool = True  # a client each; else one client with all examples
    more: float = 0.0  # of the rounds that others have: the selector's, which come on top


ROWS = {
    "centralised": Row("FedAvg({kept})", sites=False),
    "FedAvg": Row("FedAvg({adam})"),
    "FedProx": Row("FedProx(local={adam}, mu=0.01)"),
    "SCAFFOLD": Row('SCAFFOLD({sgd}, option="II")', SGD),  # option II is that of plain SGD
    "FedSM": Row("FedSM({adam}, lam=0.7, {epoch}, {selector})"),
    "FedSM-extra": Row("FedSMExtra({adam}, lam=0.7, start={start}, {batch}, {selector})"),
    "Ensemble": Row("Ensemble({adam}, lam=0.7, start={start}, {batch}, {selector})"),
    "SoftPull": Row("SoftPull(FedAvg({adam}), lam=0.7)"),
    "FT": Row("FT(FedAvg({adam}), epochs=5)"),
    "APFL": Row("APFL(local={sgd}, adaptive=True)", SGD),  # alpha is learnt along SGD's gradient
    "Per-FedAvg": Row("PerFedAvg(local={sgd}, alpha=0.3)", SGD),  # its own step is as long as SGD's here
    "pFedMe": Row("pFedMe(local={sgd}, lam=1.0, eta=0.75)", SGD),  # near w it goes as SGD with a rate of eta
    "Ditto": Row("Ditto(local={adam}, lam=0.1)"),
    "FedBN": Row("FedBN(local={adam})"),
}
IN_PLACE = {  # of SoftPull in FedSM: Table 14. Of two shared models the global one has a fixed rate
    "FedSM with FT": Row("FedSM({adam}, personal=FT(FedAvg({adam}), epochs=5), {epoch}, {selector})"),
    "FedSM with APFL": Row("FedSM({sgd}, personal=APFL(local={sgd}, adaptive=True), {epoch}, {selector})", SGD),
    "FedSM with Per-FedAvg": Row(
        "FedSM({fixed}, personal=PerFedAvg(local={sgd}, alpha=0.3), {epoch}, {selector})", SGD
    ),
    "FedSM with pFedMe": Row(
        "FedSM({fixed}, personal=pFedMe(local={sgd}, lam=1.0, eta=0.75), {epoch}, {selector})", SGD
    ),
    "FedSM with Ditto": Row("FedSM({adam}, personal=Ditto(local={adam}, lam=0.1), {epoch}, {selector})"),
}
ROWS |= IN_PLACE
ROWS |= {f"{name}, on top": ROWS[name]._replace(more=0.5) for name in ("FedSM-extra", "Ensemble")}  # thesis: 100 and 50
SWEEP = {
    f"FedSM, lam {lam}": Row(f"FedSM({{adam}}, lam={lam}, {{epoch}}, {{selector}})") for lam in LAMBDAS
}  # at FedSM's rate
FASHION = 'selector="mlp", shape=(1, 28, 28)'
EPOCH = 'form="epoch", selecting=LocalAdam(0.003)'  # a client's examples have one label, which batches do not teach
BATCH = "selecting=LocalAdam(0.001, batch=4)"


def expression(row: Row, lr: float, rounds: int, o: argparse.Namespace) -> str:
    """A row's method at a rate."""
    common = f"{lr:g}, batch={o.batch}"
    return row.expression.format(
        adam=f"LocalAdam({common})",
        kept=f"LocalAdam({common}, keep=True)",
        sgd=f"LocalSGD({common})",
        fixed=f"LocalAdam(0.003, batch={o.batch})",
        selector=(f'selector="{o.selector}"' if o.data == "retina" else FASHION),
        epoch=EPOCH,
        batch=BATCH,
        start=rounds if row.more else max(1, 2 * rounds // 3),
    )


def rounds_of(row: Row, o: argparse.Namespace, tune: bool) -> int:
    """The rounds of a row's run, those on top among them."""
    return round((o.tune_rounds if tune else o.rounds) * (1 + row.more))
