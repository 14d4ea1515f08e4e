"""What a study was asked to do, in words, and what to know before comparing its methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import complete
from ..ddp.methods import METHODS
from ..expression import parse, vocabulary
from ..pipeline import AQSGD
from ..pipeline.schedule import SCHEDULES
from ..problem import SUITED
from ..studies.read import Arm, Record, chosen, labels, not_begun, planned, read, trainers
from ..studies.read import setting as setting_of
from ..studies.read import study as study_of_run


def study_of(folders: Sequence[Path]) -> Record:
    """What the first folder that holds a study, or is a part of one, says of it. Empty where none does."""
    for folder in map(Path.resolve, folders):
        for place in (folder, *folder.parents[:2]):
            if (place / "study.json").exists():
                study = read(place / "study.json")
                if place == folder or folder.relative_to(place).parts[0] in study.get("folders", ()):
                    return study
    return {}


def title(found: Sequence[Arm], folders: Sequence[Path]) -> str:
    """What is above the page and the table. Of runs that belong to no study nobody has written down the data."""
    study, about = study_of(folders), found[0].runs[0].about
    if found[0].kind == "data-parallel":
        said = [f"{about['workers']} workers", f"{about['steps']} steps"]
    elif found[0].kind == "pipelined":
        said = [f"{about['parts']} parts", f"batches of {about['batch']}", f"{about['steps']} steps"]
    else:
        rounds = study.get("rounds") or max(run.length for arm in found for run in arm.runs)
        said = [f"{about['clients']} clients"] if "clients" in about else []
        said.append(f"{rounds} rounds")
    return ", ".join(filter(None, (study.get("task") or study.get("data"), *said)))


def setting(found: Sequence[Arm], study: Record, folders: Sequence[Path]) -> list[tuple[str, str]]:
    """What was trained and how, in words: pairs of a name and what is said of it."""
    runs = [run for arm in found for run in arm.runs]
    about = runs[0].about
    parameters = next((run.summary["parameters"] for run in runs if run.summary and "parameters" in run.summary), None)
    parameters = about.get("parameters", parameters)
    examples = f", {about['examples']:,} examples in all" if "examples" in about else ""
    said = [
        ("Data", f"{study['task']} (a task of the user's own){examples}" if study.get("task") else None),
        ("Data", f"{study['data']}{examples}" if study.get("data") and not study.get("task") else None),
        ("Pictures", "changed batch by batch: " + ", ".join(study["augment"]) if study.get("augment") else None),
        ("Model", ", ".join([*_model(study), *([f"{parameters:,} parameters"] if parameters else [])])),
        *SETTINGS[found[0].kind](about, study),
        ("Local training", _shared_trainer(found)),
        ("Seeds", _seeds(found)),
        ("Folders", ", ".join(map(str, folders))),
        ("Made with", "; ".join(dict.fromkeys(str(v) for run in runs for v in run.about.get("versions", ())))),
    ]
    return [(name, text) for name, text in said if text]


def _model(study: Record) -> list[str]:
    """Its name; a task of the user's own brings one without."""
    if "model" not in study or study.get("task"):
        return []
    suited = SUITED.get(str(study.get("data")))
    return [study["model"] or (f"{suited}, which suits the data" if suited else "one that suits the data")]


def _of_rounds(about: Record, study: Record) -> list[tuple[str, str | None]]:
    clients, sample = about.get("clients"), about.get("sample")
    everyone = "all of them take part in each round" if sample == clients else f"{sample} of them take part in a round"
    split = f", with shares of the data by {study['split']}" if study.get("split") else ""
    dropout, holdout = about.get("dropout") or 0, study.get("holdout") or 0
    return [
        ("Clients", f"{clients}{split}; {everyone}" if clients else None),
        ("Rounds", str(study["rounds"]) if study.get("rounds") else None),
        ("Lost replies", f"a client that takes part does not answer with probability {dropout:g}" if dropout else None),
        ("Network", _plain(about.get("network")) or "none simulated"),
        ("Privacy", _plain(about.get("privacy"))),
        ("Clipping", _clip(about.get("clip"))),
        (
            "Own tests",
            f"{100 * holdout:g} % of each client's examples, which it does not train on" if holdout else None,
        ),
    ]


def _clip(clip: Any) -> str | None:
    """The bound of replies of a federated run."""
    if clip is None:
        return None
    return "replies to twice their median norm of five rounds" if clip == "auto" else f"replies to a norm of {clip:g}"


def _of_steps(about: Record, study: Record) -> list[tuple[str, str | None]]:
    kind = "AdamW" if about.get("adamw") else "SGD"
    more = "" if about.get("adamw") else f", momentum {about.get('momentum', 0):g}"
    more += " (Nesterov's)" if about.get("nesterov") else ""
    more += f", weight decay {about['weight_decay']:g}" if about.get("weight_decay") else ""
    decay = ", ".join(f"{100 * share:g} %" for share in about.get("decay") or ())
    return [
        ("Workers", f"{about['workers']}, each of which takes {about['batch']} examples in a step"),
        ("Steps", f"{about['steps']:,}"),
        ("Optimiser", f"{kind}, learning rate {about['lr']:g}{more}"),
        ("Decay", f"to a tenth of the rate after {decay} of the steps" if decay else None),
    ]


def _of_parts(about: Record, study: Record) -> list[tuple[str, str | None]]:
    own = [f"{f + b:.3g}" for f, b in zip(about["forward"], about["backward"], strict=True)]
    decay = ", ".join(f"{100 * share:g} %" for share in about.get("decay") or ())
    rates = _listed([f"{factor:g}" for factor in about["rates"]]) if about.get("rates") else None
    more = f", weight decay {about['weight_decay']:g}" if about.get("weight_decay") else ""
    begin = _listed([str(place) for place in about["cut"]]) if about["cut"] else None
    return [
        ("Parts", f"{about['parts']}" + (f"; from the second on they begin at module {begin}" if begin else "")),
        ("Steps", f"{about['steps']:,}, of {about['batch']} examples"),
        ("Optimiser", f"{about['optimizer']}, learning rate {about['lr']:g}, momentum {about['momentum']:g}{more}"),
        ("Rates", f"{rates} times that, by part" if rates else None),
        ("Clipping", f"gradients of a part to a norm of {about['clip']:g}" if about.get("clip") else None),
        ("Decay", f"to a tenth of the rate after {decay} of the steps" if decay else None),
        ("Links", f"{about['mbit']:g} Mbit/s each way, {about['latency']:g} s one way"),
        ("Seconds", f"a batch takes parts {_listed(own)} s forward and back"),
    ]


def _seeds(found: Sequence[Arm]) -> str:
    runs = [run for arm in found for run in arm.runs]
    there = {run.seed for run in runs}
    left = [not_begun(run).values() for run in runs]
    ahead = {seed for each in left if each for seed in set.intersection(*map(set, each))} - there
    return "; not begun: ".join(", ".join(map(str, sorted(seeds))) for seeds in (there, ahead) if seeds)


SETTINGS = {"federated": _of_rounds, "data-parallel": _of_steps, "pipelined": _of_parts}
"""What is said of a run, from its ``run.json`` and its study, by its kind."""


def chosen_said(found: Sequence[Arm]) -> list[tuple[str, str]]:
    """What Auto chose in each run, and why."""
    return [
        (f"{arm.label}, seed {run.seed}, round {made['round']}", " ".join([f"{made['expression']}.", *made["why"]]))
        for arm in found
        for run in arm.runs
        for made in chosen(run)
    ]


def lengths_said(found: Sequence[Arm]) -> list[tuple[str, str]]:
    """How long replies were, by field, in the first and the newest round of each method's first run; their bound."""
    said = []
    for arm in found:
        run = arm.runs[0]
        where, lines = f"{arm.label}, seed {run.seed}", [line for line in run.rounds if line.get("norms")]
        for field in lines[-1]["norms"] if lines else ():
            ends = [line for line in lines if field in line["norms"]]
            ends = [ends[0], ends[-1]] if len(ends) > 1 else ends
            said.append((f"Norms of replies, {where}, {field}", "; ".join(_length(line, field) for line in ends)))
        if lines and "clipped" in lines[-1]:
            longer, everyone = (sum(line.get(name, 0) for line in lines) for name in ("clipped", "clients"))
            text = f"{longer:,} of {everyone:,} were longer than the bound, and counted as if they were as long"
            said.append((f"Clipped replies, {where}", text))
    return said


def _length(line: Record, field: str) -> str:
    """Norms of one round, and the bound."""
    low, lower, median, upper, high = line["norms"][field]
    clip = line.get("clip")
    bound = clip.get(field) if isinstance(clip, dict) else clip
    text = (
        f"round {line['round']}: {low:.3g} to {high:.3g}, half of them {lower:.3g} to {upper:.3g}, median {median:.3g}"
    )
    return text if bound is None else f"{text}, at most {bound:.3g} counts"


def written(arm: Arm) -> list[tuple[str, str]]:
    """The expressions of a method: its own, and those that it chose."""
    made = [(f"{arm.label}, seed {run.seed}", one["expression"]) for run in arm.runs for one in chosen(run)]
    return [(arm.label, arm.expression), *dict.fromkeys(made)]


def _plain(text: str | None) -> str | None:
    """An expression without what it leaves at its default, where it can be read."""
    try:
        return None if text is None else repr(parse(text, names=vocabulary()))
    except ValueError:
        return text


def _shared_trainer(found: Sequence[Arm]) -> str | None:
    """How clients train, where that is the same with every method: labels leave it out then."""
    try:
        each = [trainers(parse(arm.expression)) for arm in found]
    except ValueError:
        return None
    kinds = {complete(trainer) for some in each for trainer in some}
    return _plain(kinds.pop()) if len(kinds) == 1 else None


def warnings(found: Sequence[Arm], folders: Sequence[Path]) -> list[str]:
    """What a reader should know before comparing methods."""
    unit, said = found[0].unit, []
    runs = [run for arm in found for run in arm.runs]
    ahead = not_begun_said(found, folders)
    if single := [arm.label for arm in found if len({run.seed for run in arm.runs}) == 1 and arm.label not in ahead]:
        whose = "Every method" if len(single) == len(found) else _listed(single)
        said.append(
            f"{whose} was trained with one seed: a difference may be chance. `--seeds 0,1,2` trains with three, and "
            f"the table then has deviations."
        )
    longest = max(run.length for run in runs)
    for arm in found:
        for run in arm.runs:
            figures, wanted = "its figures are those of what there is", planned(run)
            done = f"has {run.length:,} {unit}s" if wanted is None else f"has {run.length:,} of {wanted:,} {unit}s"
            if run.summary is None:
                state = f"{done} so far and is not finished"
                if any(other.summary is not None for other in arm.runs):
                    figures = "the method's figures are those of its other seeds"
            elif wanted is not None and run.length < wanted:
                state = done
            elif run.length < longest:
                state = f"has {run.length:,} {unit}s, and others have {longest:,}"
            else:
                continue
            said.append(f"{arm.label}, seed {run.seed}, {state}: {figures}.")
    said += [f"{label} has not begun with {seeds}." for label, seeds in ahead.items()]
    seeds = {tuple(sorted({run.seed for run in arm.runs})) for arm in found}
    if len(seeds) > 1:
        said.append("Methods have different seeds: a seed draws the split and the model, so they met different ones.")
    each = [{n: v for n, v in run.about.items() if n not in MAY_DIFFER} | setting_of(run) for run in runs]
    fixed = dict.fromkeys(name for one in each for name in one)
    found_by = {name: sorted({str(one.get(name)) for one in each}) for name in fixed}
    return said + [f"Runs differ in {name}: {_listed(values)}." for name, values in found_by.items() if len(values) > 1]


def not_begun_said(found: Sequence[Arm], folders: Sequence[Path]) -> dict[str, str]:
    """By method: the seeds that its studies plan and that have not begun anywhere, in words.

    Of methods without a run those below these folders.
    """
    named = [folder.resolve() for folder in folders]
    begun = {run.path.resolve().parent: arm for arm in found for run in arm.runs}
    studies = {run.path.resolve().parent.parent: run for arm in found for run in arm.runs}
    ahead: dict[str, set[int]] = {}
    for place, run in studies.items():
        names = _names(study_of_run(run))
        for folder, seeds in not_begun(run).items():
            arm = begun.get(place / folder)
            if arm is not None:
                ahead.setdefault(arm.label, set()).update(set(seeds) - {each.seed for each in arm.runs})
            elif any((place / folder).is_relative_to(one) for one in named):
                ahead.setdefault(names.get(folder, folder), set()).update(seeds)
    return {
        label: f"seed{'s' if len(seeds) > 1 else ''} {_listed(list(map(str, sorted(seeds))))}"
        for label, seeds in ahead.items()
        if seeds
    }


def _names(study: Record) -> dict[str, str]:
    """The methods of a study by their folders, as short as the table has them."""
    methods, kind = study.get("methods", ()), study.get("kind", "federated")
    names = {text: _named(text, kind) for text in methods}
    short = labels(names) if kind == "federated" else names
    return dict(zip(study.get("folders", ()), (short[text] for text in methods), strict=False))


def _named(text: str, kind: str) -> str:
    """The name of a method that has not begun; of a module of the user's own, which a report does not run, the text."""
    outer = text.partition("(")[0]
    outermost = {name: cls for name, cls in OUTERMOST.get(kind, {}).items() if name == outer}  # a link may be called so
    try:
        return repr(parse(text, names={**vocabulary(), "AQSGD": AQSGD, **outermost}))
    except ValueError:
        return text


OUTERMOST: dict[str, dict[str, type]] = {"data-parallel": {**METHODS}, "pipelined": {**SCHEDULES}}
"""What stands around all else in a method, by the kind of its runs, besides what every expression may have."""
MAY_DIFFER = (
    *("method", "name", "seed", "model", "data", "test", "examples", "versions", "plan", "device", "staleness"),
)
"""What ``run.json`` says that may differ between runs of one study."""


def _listed(words: Sequence[str]) -> str:
    shown = [*words[:6], *([f"{len(words) - 6} more"] if len(words) > 6 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
