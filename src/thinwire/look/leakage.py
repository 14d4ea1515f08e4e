"""A client's picture as a server can rebuild it from what the client sent.

Zhu, Liu, Han, "Deep Leakage from Gradients", NeurIPS 2019, arXiv:1906.08935, Algorithm 1 (DLG); Zhao, Mopuri, Bilen,
"iDLG: Improved Deep Leakage from Gradients", 2020, arXiv:2001.02610; Melas-Kyriazi, Wang, "Intrinsic Gradient
Compression for Federated Learning", 2021, Appendix E. SSIM: Wang, Bovik, Sheikh, Simoncelli, IEEE Transactions on Image
Processing 13(4), 2004.

A client of one picture makes a real round of a real method, bytes and all. The server divides what it decodes by the
learning rate, which gives the gradient as it sees it. Then a picture is sought whose gradient, sent the same way, is
the nearest, by L-BFGS.

What "the same way" is depends on the uplink, and is found by trying it: the round is made with random updates in place
of training. Where the server then sees a linear, symmetric function of the update (dense, random subspaces, random
places), the gradients of trial pictures go through that function too. Else they are compared where the server saw
anything but zero (top-k). That is the strongest attack here. Another one may be stronger, so a poor picture is no proof
of privacy, while a good one is proof of a leak.

Differences from the papers: DLG compares squares of differences, as here; ``distance="cosine"`` is that of Geiping et
al. (NeurIPS 2020, arXiv:2003.14053), for uplinks that keep directions alone, such as signs. L-BFGS has a line search
and double precision, and the best match of several beginnings is taken. Appendix E does not say whether its attacker
knows the random subspace. The one here does, as every server does.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..algorithms import Auto
from ..algorithms.base import Algorithm
from ..errors import require
from ..federated.client import ClientState
from ..federated.hand import ClientReply, ServerState, client_round, server_round, start
from ..federated.privacy import Privacy
from ..key import Key
from ..local import Local, Memory, Trained
from ..params import Params
from ..problem import custom, standard
from ..ranges import Count
from ..studies.expressions import setting_of
from ..studies.federated import Federated
from ..task import Supervised, Task, as_tasks, labels
from ..train.one import train
from .base import DATA_DIR, METHOD, Look, Note, Row, Table, Words, option, short
from .drawing import draw_picture, panels, save
from .final import build
from .inversion import Distance, Sent, double, gradient_of, idlg, invert, rough, sent_as
from .similarity import psnr, ssim

Attack = Literal["idlg", "dlg", "label"]
SAME = 0.01  # how far from 1 a scale may be that rounding and drift explain
LINEAR = 1e-3  # how far, of its length, a sum may be from what is seen of the sum, where the uplink is linear


class Leak(NamedTuple):
    """A picture and what was rebuilt of it."""

    method: str
    label: int
    guess: int  # the label that the attacker worked with
    bytes: int  # of the client's message, without its header
    compared: str  # how gradients were compared: "whole", "through the link" or "where something was sent"
    fits: float  # the cosine of what was seen, without noise, to the example's gradient sent the same way
    match: (
        float  # the distance of the best match, by the length of the gradient that was seen squared (cosine: 1 - cos)
    )
    psnr: float  # dB, of pictures from 0 to 1
    ssim: float | None  # None of inputs that are no pictures
    original: Float[Tensor, "..."]  # from 0 to 1
    rebuilt: Float[Tensor, "..."]


# -- what a method lets the server see ----------------------------------------


class _Victim(NamedTuple):
    """A client of one picture in a round that is about to be made."""

    algorithm: Algorithm
    server: ServerState
    state: ClientState
    task: Supervised

    def reply(self, update: Tensor | None = None) -> tuple[ClientReply, Trained, float]:
        """The client's reply, what its training made, and the length to which that clips gradients.

        ``update`` takes the place of training.
        """
        slot, done, clips = self.server.view.setup.slot, list[Trained](), [math.inf]

        def answer(request: Local, task: Task, key: Key) -> Trained:
            clips.append(request.trainer.clip or math.inf)
            if update is None:
                done.append(train(slot, task, request, key))
            else:
                change = Params(request.x.layout, update.to(request.x.layout.dtype))
                memory = request.memory or Memory((change,) * request.trainer.num_vectors, 0)
                if request.gradient:  # whose step moves by the change
                    memory = Memory((change * (-1 / (request.trainer.rate(key) or 1.0)),), 0)
                done.append(Trained(request.x + change, 1, 0.0, memory, 1.0))
            return done[-1]

        reply, _ = client_round(self.algorithm, self.server.view, self.state, self.task, 0, train=answer)
        require(bool(done), f"{self.algorithm!r}: its client does not train in this round, and nothing is sent")
        return reply, done[0], min(clips)

    def server_view(self, reply: ClientReply) -> Params:
        """The client's update as the server sees it: the reply's own, or how far it moves the server's model."""
        layout, update = self.server.view.setup.slot.layout, getattr(reply.message, "update", None)
        if isinstance(update, Params) and update.names and set(update.names) <= set(layout.names):
            return layout.zeros().replace(update)
        after = server_round(self.algorithm, self.server, [reply])
        moved = self.algorithm.model(after.state) - self.algorithm.model(self.server.state)
        require(moved.layout == layout, f"{self.algorithm!r}: what it sends stands for no update of the model's layers")
        return moved

    def through(self, update: Tensor) -> Tensor:
        """An update [d] of any length, as the server sees it."""
        length = float(update.norm()) or 1.0
        return self.server_view(self.reply(update / length)[0]).flat.to(update.dtype) * length

    def uplink(self) -> Sent | None:
        """The uplink as a function of a gradient, where it is linear and symmetric; None where it is not."""
        size, draw = self.server.view.setup.slot.layout.size, Key(0).at("leakage").generator("probe")
        u, w = (F.normalize(torch.randn(size, generator=draw, dtype=torch.float64), dim=0) for _ in range(2))
        fu, fw, both = self.through(u), self.through(w), self.through(u + 2 * w)
        scale = float(fu.norm() + 2 * fw.norm())
        linear = float((both - fu - 2 * fw).norm()) <= LINEAR * scale
        symmetric = abs(float(torch.dot(fu, w) - torch.dot(u, fw))) <= LINEAR * scale / size**0.5
        return self.through if scale and linear and symmetric else None

    def scale(self, begin: Params, rates: float, sent: Sent | None, clips: tuple[float, float]) -> float:
        """By how much more than ``rates`` this client's update stands for of a gradient.

        An attacker tries it with noise in place of the picture. It is 1 where a round is one step of SGD. A client
        that trains several times in a round, as those of pFedMe and FedRep, sends more.
        """
        like = self.task.inputs
        noise = torch.rand(like.shape, generator=Key(0).at("leakage").generator("scale")).to(like)
        known = Supervised(noise, torch.zeros_like(self.task.targets))
        moved = self.server_view(self._replace(task=known).reply()[0]).flat.double()
        slot = self.server.view.setup.slot
        slot.load(begin)
        own = sent_as(gradient_of(slot.module, known.inputs, known.targets), sent, clips).whole
        ratio = -float(torch.dot(moved, own) / torch.dot(own, own).clamp_min(1e-300)) / rates
        return ratio if abs(ratio - 1) > SAME and ratio > 0 else 1.0


def leak(
    algorithm: Algorithm,
    model: nn.Module | Callable[[], nn.Module],
    task: Task,
    picture: int = 0,
    *,
    round: int = 1,
    privacy: Privacy | None = None,
    attack: Attack = "idlg",
    distance: Distance = "squares",
    iterations: int = 300,
    tries: int = 3,
    seed: int = 0,
) -> Leak:
    """The example of ``task`` that can be rebuilt from the reply of a client that holds it alone.

    ``picture`` is the example's position. The client sends it in ``round``. In the rounds before it had the examples
    that follow, one a round, which matters for methods that remember. ``attack`` says what the attacker knows of the
    label: "idlg" reads it off the last layer, "dlg" seeks it with the picture, "label" knows it.

    With ``privacy`` the attacker is somebody who sees the server's noisy mean, of a round in which this client is the
    only one. The server itself sees what it sees without. The attacker knows to what length replies and gradients are
    clipped, and clips its own. Of a link that leaves entries out it is told which, though noise hides them: an
    attacker who has to guess them finds less.

    Raises ``ValueError`` for a task that has no float inputs with classes as targets, and where the method cannot be
    trained with one client of one example, or not with ``privacy``.
    """
    require(0 <= picture < len(task), f"picture {picture}: the data have examples 0 to {len(task) - 1}")
    require(round >= 1, f"round={round}: rounds are counted from 1")
    held = [_single(task, (picture + more) % len(task)) for more in range(round)]
    server, state = start(algorithm, model, [held[0]], seed)
    for number in range(1, round):
        reply, state = client_round(algorithm, server.view, state, held[round - number], 0)
        server = server_round(algorithm, server, [reply])
    victim = _Victim(algorithm, server, state, held[0])
    reply, trained, clip = victim.reply()
    update = victim.server_view(reply)
    clips, there = (clip, math.inf), (update.flat != 0).double()
    slot = server.view.setup.slot
    module = slot.module
    begin = victim.reply(torch.zeros_like(update.flat))[1].x  # from which the client trains
    sent = victim.uplink()
    if sent is None:
        sent, compared, scale = (lambda g: g * there), "where something was sent", 1.0
    else:
        probe = torch.ones_like(there)
        whole = float((sent(probe) - probe).norm()) <= LINEAR * float(probe.norm())
        sent, compared = (None, "whole") if whole else (sent, "through the link")
        scale = victim.scale(begin, trained.rates, sent, (clip, math.inf))
    slot.load(begin)
    rates = trained.rates * scale
    plain = -update.flat.double() / rates
    if privacy is not None:
        privacy.check(repr(algorithm), algorithm.weights, server.view.setup.forms(algorithm)[0].fields)
        clips = clip, privacy.clip / rates
        update = privacy.hide(update * min(1.0, privacy.clip / (update.norm() or 1.0)), 1.0, f"{seed}|leakage", round)
    gradient = -update.flat.double() / rates
    some = task.batch(torch.arange(min(100, len(task))))[0]  # in which range inputs are is no secret
    between = float(some.min()), float(some.max())
    inputs, targets = held[0].batch(torch.tensor([0]))
    with torch.no_grad():
        classes = double(module)(inputs.double()).shape[-1]
    label = int(targets)
    guess = label if attack == "label" else idlg(module, gradient, classes) if attack == "idlg" else None
    shape = inputs.shape[1:]
    match = invert(module, gradient, shape, classes, guess, sent, distance, iterations, tries, seed, between, clips)
    own = sent_as(gradient_of(module, inputs, targets), sent, clips)
    fits = float(F.cosine_similarity(own.whole, plain, dim=0))
    original, rebuilt = _pictures(task, inputs[0].double(), match.inputs[0])
    alike = ssim(original, rebuilt) if original.ndim == 3 and min(original.shape[1:]) >= 3 else None
    about = repr(algorithm), label, match.label, len(reply.blob), compared, fits, match.match
    return Leak(*about, psnr(original, rebuilt), alike, original, rebuilt)


def _single(task: Task, position: int) -> Supervised:
    """A single example of a task, as the model takes it."""
    batch: Any = task.batch(torch.tensor([position]))
    targets = labels(batch, "the leakage check")
    require(
        isinstance(batch[0], Tensor) and batch[0].is_floating_point(),
        "the leakage check rebuilds inputs of floats, such as pictures: words and letters have no derivative",
    )
    require(targets.ndim == 1, "the leakage check needs one class an example")
    return Supervised(batch[0], targets)


def _pictures(task: Task, *pictures: Tensor) -> list[Tensor]:
    """Inputs of a model as pictures from 0 to 1: normalised ones as they were; others by the first one's range."""
    mean, std = getattr(task, "mean", None), getattr(task, "std", None)
    if isinstance(task, Supervised) and task.inputs.dtype == torch.uint8 and mean is not None and std is not None:
        mean, std = (torch.tensor(x, dtype=torch.float64).view(-1, 1, 1) for x in (mean, std))
        pictures = tuple(x * std + mean for x in pictures)
    low, high = float(pictures[0].min()), float(pictures[0].max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    return [((x - low) / ((high - low) or 1.0)).clamp(0, 1) for x in pictures]


# -- the look -----------------------------------------------------------------

FITS = 0.9  # cosine, below which what is sent is hardly a gradient


class Reading(NamedTuple):
    """A leak of each method, and the noise that hid them."""

    privacy: Privacy | None
    leaks: list[Leak]


@dataclass(frozen=True)
class Leakage(Look[Reading]):
    """It reads no run."""

    subject = "nothing"
    out = ("A folder for the pictures.", Path("runs/leakage"))

    methods: tuple[str, ...] = option(MISSING, METHOD, metavar="EXPR")
    data: str = option("digits", "A data set of `thinwire run`.")
    model: str = option("dlg_lenet", "A model of `thinwire run`; dlg_lenet is the attack's own.")
    task: str | None = option(None, "my_module:make_task instead of --data and --model.")
    picture: int = option(0, "The position of the client's picture in the training data.")
    round: Count = option(1, "The round in which it is sent; in those before, the next pictures.")
    privacy: str | None = option(
        None, "Noise on the mean, which others than the server see: Privacy(clip=1, noise=0.01)."
    )
    attack: Annotated[str, Words(get_args(Attack))] = option(
        "idlg", "idlg (label from the last layer), dlg (label sought too) or label (known)."
    )
    distance: Annotated[str, Words(get_args(Distance))] = option(
        "squares", "squares or cosine: how gradients are compared."
    )
    iterations: Count = option(300, "Steps of L-BFGS.")
    tries: Count = option(3, "Beginnings, of which the best match is taken.")
    lr: float | None = option(None, "Local learning rate, where an expression leaves it open.")
    seed: int = option(0, "Seed of the model and of the beginnings.")
    use: tuple[str, ...] = option((), "A module with methods or links of your own. Repeatable.")
    data_dir: str | None = option(None, DATA_DIR)

    def __post_init__(self) -> None:
        super().__post_init__()
        other = [f for f in fields(self) if f.name in ("data", "model") and getattr(self, f.name) != f.default]
        for name in (f.name for f in other):
            why = f"--{name} is not used with --task {self.task}, which makes model and data itself"
            require(self.task is None, f"{why}: leave --{name} out")

    def read(self, _: None) -> Reading:
        privacy = setting_of({"privacy": self.privacy}).privacy if self.privacy else None
        resolved = Federated.resolve(self.methods, self.use, {"lr": self.lr})
        typed = [Federated.method(text, self.use) for text in resolved]
        methods = [method for method in typed if not isinstance(method, Auto)]
        fits = len(methods) == len(typed)
        require(fits, "Auto is chosen by a run: give the expression that `thinwire plan` says")
        if self.task:
            problem = custom(self.task, 1, self.seed)
        else:
            problem = standard(self.data, self.model, 1, seed=self.seed, data_dir=self.data_dir)
        task = as_tasks(problem.tasks)[0]
        if kinds := rough(build(problem.model, self.seed)):
            print(
                f"note: this model has {', '.join(kinds)}, whose second derivatives are zero nearly everywhere: L-BFGS "
                "cannot invert its gradients, so a poor picture says nothing of other attacks; dlg_lenet is smooth",
                file=sys.stderr,
            )
        how: dict[str, Any] = {name: getattr(self, name) for name in ("attack", "distance", "iterations", "tries")}
        how |= {"round": self.round, "privacy": privacy, "seed": self.seed}
        return Reading(privacy, [leak(method, problem.model, task, self.picture, **how) for method in methods])

    def rows(self, reading: Reading) -> Iterable[Row]:
        hidden = f", {reading.privacy!r}" if reading.privacy else ""
        yield Table(
            f"picture {self.picture} of {self.task or self.data}, round {self.round}{hidden}",
            ("method", "bytes", "PSNR", "SSIM", "match", "label", "guess"),
            [
                [e.method, f"{e.bytes:,}", f"{e.psnr:.1f}", short(e.ssim), f"{e.match:.1e}", e.label, e.guess]
                for e in reading.leaks
            ],
        )
        for e in (e for e in reading.leaks if e.fits < FITS):
            yield Note(
                f"note: what {e.method} sends has a cosine of {e.fits:.2f} to the gradient of the picture, and this "
                "attack takes it for that: a poor picture says nothing of other attacks"
            )

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        return [draw_leaks(reading.leaks, folder / "leakage.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        leaks = [leak._asdict() for leak in reading.leaks]
        for numbers in leaks:
            del numbers["original"], numbers["rebuilt"]
        return {"privacy": None if reading.privacy is None else repr(reading.privacy), "leaks": leaks}


def draw_leaks(leaks: Sequence[Leak], path: Path) -> Path:
    """The picture, and what was rebuilt of it from what each method sends."""
    titles = ["the client's picture"]
    for one in leaks:
        alike = "" if one.ssim is None else f", SSIM {one.ssim:.2f}"
        name = textwrap.wrap(one.method, 36, break_long_words=False)[:3]
        titles.append("\n".join([*name, f"PSNR {one.psnr:.1f} dB{alike}"]))
    figure, places = panels(1 + len(leaks), 2.6, 3.05 + 0.12 * max(title.count("\n") for title in titles))
    for place, title, picture in zip(places, titles, [leaks[0].original, *(one.rebuilt for one in leaks)], strict=True):
        draw_picture(place, picture, title)
    return save(figure, path, bbox_inches="tight")  # the layout leaves too little for titles over square pictures
