"""The papers' claims in docs/claims: what was found of each, and all rows of the trainings that were made for them.

Rows without lines are said to be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import TABLES, Line, Missing, markdown, mean, personal, pipelined, sent
from .verdict import Claim, Row, lines, number, trained, verdict

OURS = " (no claim of the paper)"
PAPERS = {  # folder of results -> page, title
    "lbgm": ("lbgm.md", "LBGM"),
    "luar": ("fedluar.md", "FedLUAR"),
    "dsp": ("thesis.md", "DSP"),
    "def": ("thesis.md", "DEF"),
    "personal": ("thesis.md", "FedSM"),
    "optimisers": ("thesis.md", "DOMO"),
    "intrinsic": ("intrinsic.md", "Intrinsic"),
    "flss": ("flss.md", "FLSS"),
}
LBGM = "100 clients of 3 classes, all of the data, 500 rounds", "the same of 3,000 pictures, 200 rounds, in bfloat16"
LBGM_RATE = LBGM[0], "the same of 3,000 pictures, at the paper's rate of .01"
BENEATH = "MNIST, 100 clients of 3 classes, all of the data, 100 rounds", "the same of 3,000 pictures, in bfloat16"
SIGNS = (
    "CNNs, distributed training by signs, classes apart",
    "Fashion-MNIST, two data-parallel workers, 1,000 steps, in bfloat16",
)
HALF = "MNIST, half of 100 clients a round, 100 rounds", "the same of 3,000 pictures, in bfloat16"
LETTERS = (
    "FEMNIST, 128 clients, 32 a round, 200 rounds",
    "EMNIST letters, 64 clients, 8 a round, 150 rounds, in bfloat16",
)
LUAR = "CIFAR-10, ResNet-20, 128 clients, 200 rounds", LETTERS[1]
QUOTED = "as others quote the paper, data set not said", LETTERS[1]
DEF = (
    "CIFAR-10, VGG-16, 16 workers, 78,000 steps, ratio 64",
    "CIFAR-10, 1.3M parameters, 2 workers, 12,000 steps, ratio 64",
)
DSP = (
    "CIFAR-10, ResNet-164, batches of 128, 300 epochs",
    "10,000 pictures of CIFAR-10, ResNet-20, batches of 64, 15 epochs",
)
ONE_RATE = (
    DSP[0] + ", a rate of .01 for all rows",
    "4,000 pictures of CIFAR-10, a ResNet-8 of half the width, batches of 64, 40 epochs, a rate of .01 for all rows",
)
DOMO = (
    "CIFAR-10, VGG-16, 16 clients, P = 98, 200 epochs",
    "a quarter of CIFAR-10, LBGM's CNN, 16 clients, P = 98, 25 rounds",
)
FLSS = (
    "70,000 pictures, 5 local epochs, 400 rounds, L = 200, R = 50",
    "1,500 pictures, 1 local epoch, in bfloat16, the same rounds, L and R",
)
HOSPITALS = "disc and cup at six sites, 256 pixels, 150 rounds"
SITES = {  # file of results -> what is said before a claim, and what it is
    "retina_128": ("", "vessels at seven sites, 128 pixels, half the channels, 60 rounds"),
    "retina_64": ("64 pixels: ", "vessels at seven sites, 64 pixels, half the channels, 60 rounds"),
    "fashion_sites": ("six cameras: ", "Fashion-MNIST, 3,000 pictures, a camera for each of 6 clients, 30 rounds"),
    "fashion_mnist": ("other classes: ", "Fashion-MNIST, 3,000 pictures, 20 clients by Dirichlet(.1), 30 rounds"),
}
SST2 = "BERT, 50 clients", "fastText, 50 clients, 10 a round, 300 rounds"
EIGHT = "PersonaChat, GPT-2"
MANY = "ResNet-9, 10,000 clients, 2,400 rounds", "LBGM's CNN, 10,000 clients, 300 rounds"
OVER = ("FedProx", "FedOpt, .9", "FedAvgM, .6", "FedACG", "FedMut", "MOON", "FedPAQ, 16 levels", "PruneFL")


def _claims() -> list[Claim]:
    found = []

    def add(
        group: str,
        settings: tuple[str, str],
        text: str,
        row: Row,
        other: Row | tuple[Row, ...],
        gap: float | None,
        **more: object,
    ) -> None:
        theirs, ours = settings
        found.append(Claim(group, text, row, other, gap, theirs, ours, **more))  # type: ignore[arg-type]

    for delta, gap, saved, text in (
        (0.2, -14.0, 0.0, "δ = .2 costs up to 14 points"),
        (0.05, -4.0, 0.55, "δ = .05 costs up to 4 points and saves 55 %"),
        (0.01, -0.01, 0.22, "δ = .01 costs up to .01 points and saves 22 %"),
    ):
        name, settings = ("CIFAR-10", LBGM) if delta == 0.2 else ("CIFAR-10, .01", LBGM_RATE)
        rows = (name, f"delta {delta}"), (name, "dense")
        add("lbgm", settings, f"CIFAR-10, {text}", *rows, gap, saved=saved, from_to=(70.3, 10.0))
    for name, gap, saved, text in (("half sampled", -4.0, 0.55, "4"), ("half sampled, iid", -0.2, 0.35, ".2")):
        what = f"{name}, δ = .2 costs up to {text} points and saves {100 * saved:.0f} %"
        add("lbgm", HALF, what, (name, "delta .2"), (name, "dense"), gap, saved=saved)
    tops = [f"top-k {share} %{feedback}" for feedback in (", error feedback", "") for share in ("10", "1", "0.1")]
    for row, saved, text in (
        *((row, 0.3, f"saves 30 to 70 % on top of {row}") for row in (*tops, "rank 2", "rank 1", "rank 3")),
        ("signs", 0.6, "saves 60 to 80 % on top of signs of clients (Figure 8)"),
    ):
        own = "" if row in ("top-k 10 %, error feedback", "rank 2", "signs") else OURS
        text += own or (" (ATOMO)" if row == "rank 2" else "")
        add("lbgm", BENEATH, text, ("beneath", f"LBGM over {row}"), ("beneath", row), -1.0, saved=saved)
    signs = "LBGM over signs, delta .2"
    add(
        "lbgm",
        SIGNS,
        "saves 60 to 80 % over signs of two data-parallel ranks" + OURS,
        ("ranks", signs),
        ("ranks", "signs"),
        -1.0,
        saved=0.6,
    )

    for many in (2, 1, 3):
        own = f"{many} of 4, metric"
        fedavg, dropped = ("recycling", "FedAvg"), ("recycling", f"{own}, dropped")
        recycled = "recycling", f"{own}, recycled"
        if many == 2:
            add("luar", QUOTED, "half of the bytes cost up to 1.1 points", recycled, fedavg, -1.12, saved=0.5)
        add("luar", LUAR, f"recycling {many} of 4 is better than dropping", recycled, dropped, None)
        if many == 3:
            continue
        at_random = [("recycling", f"{many} of 4, uniform, {how}") for how in ("recycled", "dropped")]
        add("luar", LUAR, f"at random too, recycling {many} of 4 is better than dropping", *at_random, None)
        gap = 6.2 if many == 2 else None
        by = " by 6.2 points" if gap else ""
        what = f"{many} of 4 by the metric is better than at random{by}, at equal bytes both ways"
        apart = ("recycling", f"{many} of 4, uniform, recycled")
        add("luar", QUOTED if gap else LUAR, what, recycled, apart, gap, equal=True)
        if many == 2:
            for text, row in (("by the update's norm alone", "gradient norm"), (f"in turn{OURS}", "round-robin")):
                what = f"2 of 4 by the metric is better than {text}, at equal bytes both ways"
                add("luar", LUAR, what, recycled, ("recycling", f"2 of 4, {row}, recycled"), None, equal=True)
    news = "AG News, DistilBERT, 128 clients, 100 rounds", "AG News, fastText, 32 clients, 8 a round, 100 rounds"
    what = "AG News as FedAvg for 17 % of the floats"
    add("luar", news, what, ("AG News", "1 of 2, metric, recycled"), ("AG News", "FedAvg"), -0.1, saved=0.83)
    dropped = "AG News", "1 of 2, metric, dropped"
    what = "AG News: recycling 1 of 2 is better than dropping"
    add("luar", news, what, ("AG News", "1 of 2, metric, recycled"), dropped, None)
    alike = news[0], "AG News, fastText, 64 clients by Dirichlet(1), 16 a round, the rate falls twice, 100 rounds"
    recycled = "AG News, alike", "1 of 2, metric, recycled"
    what = "AG News, Dirichlet(1): as FedAvg for 17 % of the floats"
    add("luar", alike, what, recycled, ("AG News, alike", "FedAvg"), -0.1, saved=0.83)
    what = "AG News, Dirichlet(1): recycling 1 of 2 is better than dropping"
    add("luar", alike, what, recycled, ("AG News, alike", "1 of 2, metric, dropped"), None)
    attended = news[0], "AG News, a transformer from random weights, Adam, 32 clients, 8 a round, 60 rounds"
    recycled = "AG News, transformer", "7 of 10, metric, recycled"
    what = "AG News as FedAvg for 17 % of the floats, transformer"
    add("luar", attended, what, recycled, ("AG News, transformer", "FedAvg"), -0.1, saved=0.83)
    dropped = "AG News, transformer", "7 of 10, metric, dropped"
    what = "AG News: recycling 7 of 10 is better than dropping, transformer"
    add("luar", attended, what, recycled, dropped, None)
    for row, gap, saved in (
        ("FedPAQ, 16 levels", 0.53, 0.75),
        ("LBGM layer by layer, delta .2", -1.18, 0.29),
        ("FedPara, a quarter", -3.32, 0.78),
    ):
        what = f"{row}: {abs(gap):g} points {'ahead of' if gap > 0 else 'behind'} FedAvg, {100 * saved:.0f} % saved"
        add("luar", LETTERS, what, ("compared", row), ("recycling", "FedAvg"), gap, saved=saved)
    for row in OVER:
        alone = "compared" if row.startswith(("FedPAQ", "PruneFL")) else "optimisers"
        what = f"over {row} half of the bytes cost up to 1.1 points, as over FedAvg"
        add("luar", QUOTED, what, ("optimisers", f"{row}, 2 of 4 recycled"), (alone, row), -1.12, saved=0.5)

    plain = ("1 part", "BP")
    for parts, best in ((3, "DSP((1, 1, 0), (4, 2, 0))"), (4, "DSP((1, 1, 1, 0), (6, 4, 2, 0))")):
        where, others = f"{parts} parts", pipelined.thesis(parts)
        add("dsp", DSP, f"{where}: FR is as good as backpropagation", (where, "FR()"), plain, 0.0)
        for row in (row for row in others if row.startswith("DSP")):
            gap = round(others[row] - pipelined.thesis(1)["BP"], 2)
            far = f"{abs(gap):g} points {'ahead of' if gap > 0 else 'behind'} backpropagation"
            add("dsp", DSP, f"{where}: {row} is {far}", (where, row), plain, gap)
        add("dsp", DSP, f"{where}: {best} is as good as FR", (where, best), (where, "FR()"), 0.0)
    plain = (f"{pipelined.ONE_RATE}1 part", "BP")
    for parts in (3, 4):
        where = f"{pipelined.ONE_RATE}{parts} parts"
        for row in pipelined.thesis(parts):
            what = f"one rate for all, {parts} parts: {row} is not behind backpropagation"
            add("dsp", ONE_RATE, what, (where, row), plain, 0.0)
    plain = ("1 part", "BP")
    text = "DNI does not converge"
    add("dsp", DSP, text, plain, ("3 parts", "DNI()"), None, fails=True)

    dense, ours = ("two ranks", "dense"), ("two ranks", "DEF")
    add("def", DEF, "DEF is .01 points behind dense", ours, dense, -0.01, saved=0.98)
    add("def", DEF, "DEF-A is .15 points behind dense", ours, dense, -0.15, saved=0.98, of="accuracy_x_mean_of_last_5")
    four = DEF[0], DEF[1].replace("2 workers", "4 workers")
    what, other = "four ranks: DEF is .01 points behind dense", ("four ranks", "dense")
    add("def", four, f"{what}, λ by rule", ("lambda, four ranks", "lambda by rule"), other, -0.01, saved=0.98)
    add("def", four, f"{what}, λ the best of four", ("lambda, four ranks", "lambda 0.5"), other, -0.01, saved=0.98)
    for row, gap in (("EF", 1.59), ("SAEF, averaged every 100 steps", 1.87), ("PSync", 1.96)):
        add("def", DEF, f"DEF is {gap:g} points ahead of {row}", ours, ("two ranks", row), gap)
    for name, settings in (("two", DEF), ("four", four)):
        low = (f"lambda, {name} ranks", "lambda 0.3")
        what = f"{name} ranks: λ of .7 is better than .3 (no claim of the thesis)"
        add("def", settings, what, (low[0], "lambda 0.7"), low, None)
    deep = "CIFAR-10, ResNet-110, 16 workers, 78,000 steps", "CIFAR-10, ResNet-20, 2 workers, 12,000 steps, in bfloat16"
    for row, gap in (("DEF", -0.39), ("DEF, average", -0.07)):
        of = "accuracy_x_mean_of_last_5" if "average" in row else "accuracy_mean_of_last_5"
        name = "DEF-A" if "average" in row else "DEF"
        what = f"ResNet: {name} is {-gap:g} points behind dense"
        add("def", deep, what, ("ResNet-20", "DEF"), ("ResNet-20", "dense"), gap, saved=0.98, of=of)
    for row, gap in (("SAEF, averaged every 100 steps", 1.39), ("PSync", 2.08)):
        what = f"ResNet: DEF is {gap:g} points ahead of {row}"
        add("def", deep, what, ("ResNet-20", "DEF"), ("ResNet-20", row), gap)
    diverging = [("ResNet-20", "EF, dense's rate"), ("EF21", "over blocks")]
    add("def", deep, "EF diverges on a ResNet, at dense's rate", ("ResNet-20", "dense"), diverging[0], None, fails=True)
    add("def", DEF, "EF21 does not converge over blocks", dense, diverging[1], None, fails=True)

    family = ("FedAvg", "FedAvgSM", "FedAvgSLM-Z", "FedAvgSLM", "FedAvgLM", "FedAvgLM-Z")
    for name, among, gap in (
        ("s = 10 %", family, 2.13), ("s = 20 %", family, 1.02), ("E = .5", family[2:3], 1.25),
        ("E = 2", family[2:3], 1.70),
    ):  # fmt: skip
        what = f"{gap:g} points ahead of the best of {', '.join(among)}"
        if len(among) == 1:
            what = f"ahead of {among[0]} (the thesis: {gap:g} points ahead of its best counterpart)"
        others = tuple((name, row) for row in among)
        add("optimisers", DOMO, f"{name}: DOMO is {what}", (name, "DOMO"), others, gap)
    for row in family:
        add("optimisers", DOMO, f"s = 10 %: DOMO is ahead of {row}", ("s = 10 %", "DOMO"), ("s = 10 %", row), None)
    text = "s = 10 %: DOMO-S is .72 points behind DOMO"
    add("optimisers", DOMO, text, ("s = 10 %", "DOMO-S"), ("s = 10 %", "DOMO"), -0.72)
    for name, row, gap in (
        ("alpha and beta", "beta 1", 3.65), ("alpha and beta", "beta .6", 3.94), ("alpha and beta", "beta .2", 11.0),
        ("alpha and beta", "alpha .8", 0.71), ("alpha and beta", "alpha .4", 3.46),
        *(("mu", row, None) for row in ("mu_s .6", "mu_l .9", "mu_l 0")),
    ):  # fmt: skip
        best = "beta .9, alpha 1, mu_s .9, mu_l .6"
        far = "" if gap is None else f" by {gap:g} points"
        add("optimisers", DOMO, f"{best} is better than {row}{far}", ("s = 10 %", "DOMO"), (name, row), gap)

    for name, row, gap, what in (
        ("Dirichlet(.1)", "FedAvg", 1.19, "Fashion-MNIST, β = .1"),
        ("pathological", "FedAvg", 2.07, "Fashion-MNIST, two classes a client"),
        ("Dirichlet(.1)", "Sign+EF", 0.53, "Fashion-MNIST, β = .1, over signs"),
    ):
        text = f"{what}: FLSS is {gap:g} points ahead of {row}"
        add("flss", FLSS, text, (name, f"{row}+FLSS"), (name, row), gap, saved=0.4)
    words = (
        FLSS[0].replace("70,000 pictures", "AG News, fastText"),
        "6,000 texts, fastText, 1 local epoch, the same rounds, L and R",
    )
    text = "AG News: FLSS is 6.2 points ahead of FedAvg"
    add("flss", words, text, ("AG News", "FedAvg+FLSS"), ("AG News", "FedAvg"), 6.22, saved=0.4)
    streaming = "AG News", "FedAvg+FLSS"
    for row, gap in (
        ("FedProx, mu .01", 6.02), ("MOON, mu .01", 5.81), ("FedNTD, beta .001", 6.24), ("FedGen", 5.37),
    ):  # fmt: skip
        add("flss", words, f"AG News: FLSS is {gap:.1f} points ahead of {row}", streaming, ("AG News", row), gap)
    swept = words[0].replace("AG News, fastText", "CIFAR-100, Dirichlet(.5)"), words[1]
    for text, gap, row in (
        ("a streaming subspace is 1.05 points better than a fixed one", 1.05, "fixed subspace"),
        ("R = 50 is better than 12 (the paper: .5 points better than 20)", None, "R = 12"),
        ("L = 200 is better than 100", None, "L = 100"),
    ):
        add("flss", swept, f"AG News: {text}", streaming, ("ablations", row), gap)
    add("flss", swept, "AG News: λ = .7 is .1 points better than 1", ("ablations", "lambda .7"), streaming, 0.1)
    five = words[0], words[1].replace("6,000", "16,600").replace("1 local epoch", "5 local epochs")
    for name, gap in (("N = 20, M = 10", 2.94), ("N = 50, M = 50", 1.17), ("E = 5", 1.9)):
        text = f"AG News, {name}: FLSS is {gap:.1f} points ahead of FedAvg"
        theirs = FLSS[0].replace("70,000 pictures", "CIFAR-10" + (", Dirichlet(.5)" if name == "E = 5" else ""))
        settings = theirs, (five if name == "E = 5" else words)[1]
        add("flss", settings, text, (name, "FedAvg+FLSS"), (name, "FedAvg"), gap)
    for row, gap in (("FedAvg", 6.22), ("FedDC, alpha .5", 1.82)):
        text = f"AG News, the paper's rate of .01: FLSS is {gap:.1f} points ahead of {row}"
        add("flss", five, text, ("rate .01", "FedAvg+FLSS"), ("rate .01", row), gap, saved=0.4)

    def fed_sm(file: str, row: str, other: str, gap: float | None, text: str, of: str = "reached") -> None:
        name, ours = SITES[file]
        add("personal", (HOSPITALS, ours), name + text, (file, row), (file, other), gap, of=of)

    theirs = {row: 100 * mean for row, (mean, _) in personal.THESIS.items()}
    for file in SITES:
        own = OURS.replace("paper", "thesis") if file == "fashion_mnist" else ""  # clients, and no sites
        fed_sm(file, "FedSM", "centralised", 0.0, "FedSM is as good as centralised training" + own)
        if not file.startswith("retina"):
            fed_sm(file, "FedSM", "FedAvg", None, "FedSM is ahead of FedAvg" + own)
            continue
        for row, other in (
            *(("FedSM", other) for other in ("FedAvg", "FedProx", "SCAFFOLD")),
            ("FedSM-extra", "FedAvg"),
            *(("FedSM", other) for other in personal.LAMBDAS if other != "FedSM"),
        ):
            gap = theirs[row] - theirs[other]
            fed_sm(file, row, other, gap, f"{row} is {gap:.1f} points ahead of {other}")
        for other in ("FT", "APFL", "Per-FedAvg", "pFedMe"):  # the thesis has them within FedSM, in place of SoftPull
            gap = theirs["FedSM"] - theirs[other]
            text = f"clients' own models are {gap:.1f} points better by FedSM's SoftPull than by {other}"
            fed_sm(file, "FedSM", other, gap, text, "own")

    for d, part in (("6,400", 3), ("25,600", 11)):
        text = f"SST-2: time-varying is ahead of static at d = {d}, {part} % of all"
        few = "BERT, 50 clients, d below 6,400, .006 % of all: 0.7 to 3.1 points", SST2[1]
        add("intrinsic", few, text, ("SST-2", f"time-varying, d = {d}"), ("SST-2", f"static, d = {d}"), None)
    attended = SST2[0], "a transformer from random weights, 50 clients, 10 a round, 60 rounds"
    for name, settings, least in (("SST-2", SST2, "6,400"), ("SST-2, transformer", attended, "25,600")):
        rows = [(name, f"static, d = {d}") for d in ("102,400", least)]
        text = f"{name}: more dimensions are better, 102,400 than {least}"
        add("intrinsic", settings, text, rows[0], rows[1], None)
    d = "25,600"
    rows = [("SST-2, transformer", f"{name}, d = {d}") for name in ("time-varying", "static")]
    add("intrinsic", attended, f"SST-2, transformer: time-varying is ahead of static at d = {d}", *rows, None)
    for name, settings, eight, one in (
        ("10,000 clients", (EIGHT, MANY[1]), "K = 8, D / 475", "static, D / 475"),
        ("SST-2", (EIGHT, SST2[1]), "K = 8, d = 6,400", "static, d = 6,400"),
    ):
        add(
            "intrinsic",
            settings,
            f"{name}: K = 8 is ahead of one subspace for the same upload",
            (name, eight),
            (name, one),
            None,
        )
    for row, other, text in (
        ("time-varying, D / 475", "static, D / 475", "time-varying is ahead of static"),
        ("static, D / 30", "static, D / 475", "more dimensions are better"),
    ):
        add("intrinsic", MANY, f"10,000 clients: {text}", ("10,000 clients", row), ("10,000 clients", other), None)
    text = "10,000 clients: a subspace is ahead of top-k for the same floats up"
    add("intrinsic", MANY, text, ("10,000 clients", "static, D / 475"), ("10,000 clients", "top-k, D / 475"), None)
    text = "10,000 clients: eight subspaces are ahead of FetchSGD for the same floats up"
    add("intrinsic", MANY, text, ("10,000 clients", "K = 8, D / 475"), ("10,000 clients", "FetchSGD, D / 475"), None)
    text = f"10,000 clients: K = 8, time-varying is ahead of K = 8{OURS}"
    eight = "K = 8, time-varying, D / 475", "K = 8, D / 475"
    add("intrinsic", MANY, text, *(("10,000 clients", row) for row in eight), None)
    return found


CLAIMS = _claims()


def of_group(group: str) -> Callable[[], list[str]]:
    """The claims of a paper."""

    def made() -> list[str]:
        head = ["claim", "the paper's setting", "ours", "what was found", "verdict"]
        rows = [[c.text, c.theirs, c.ours, number(c), verdict(c)] for c in CLAIMS if c.group == group]
        return markdown(head, rows, range(5))

    return made


def rows_of(group: str) -> Callable[[], list[str]]:
    """Every row that has lines, with the mean of the last five evaluations."""

    def made() -> list[str]:
        if not lines(group):
            raise Missing(f"python experiments/{group}/claims.py")
        return _rows(lines(group))

    return made


def other_rates_of(group: str) -> Callable[[], list[str]]:
    """The rows that were trained at another rate too, at which they do worse."""

    def made() -> list[str]:
        best = lines(group)
        return _rows([line for line in trained(group) if line not in best])

    return made


def _rows(some: Iterable[Line]) -> list[str]:
    by_row: dict[tuple[Row, float], list[Line]] = {}
    for line in some:
        by_row.setdefault(((line["setting"]["name"], line["row"]), line["rate"]), []).append(line)
    rows, settings = [], list(dict.fromkeys(name for (name, _), _ in by_row))
    for ((name, row), rate), found in sorted(by_row.items(), key=lambda each: settings.index(each[0][0][0])):
        ended = [line for line in found if "accuracy" in line]
        shown = mean(line["accuracy_mean_of_last_5"] for line in ended) if ended else ""
        if lost := len(found) - len(ended):
            shown += f"{', ' if shown else ''}{lost} of {len(found)} diverged"
        seeds = ", ".join(str(line["seed"]) for line in sorted(found, key=lambda line: line["seed"]))
        rows.append([name, row, shown, seeds, f"{rate:g}", *(sent(*ended) if ended else ["", ""])])
    return markdown(["setting", "row", "accuracy", "seeds", "rate", "MB up", "MB down"], rows, (0, 1, 3))


def all_claims() -> list[str]:
    """The table on top: each claim and its verdict."""
    rows = []
    for claim in sorted(CLAIMS, key=lambda claim: list(PAPERS).index(claim.group)):
        page, title = PAPERS[claim.group]
        rows.append([f"[{title}]({page})", claim.text, number(claim), verdict(claim)])
    return markdown(["paper", "claim", "what was found", "verdict"], rows, range(4))


TABLES["claims"] = all_claims
for _group in PAPERS:
    TABLES[f"claims-{_group}"] = of_group(_group)
    if _group not in ("personal", "dsp"):  # whose rows have tables of their own, in docs/measured
        TABLES[f"rows-{_group}"] = rows_of(_group)
TABLES["other-rates-lbgm"] = other_rates_of("lbgm")
