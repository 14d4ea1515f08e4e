"""A study's setting in words, and what to know before comparing its methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..config import complete
from ..expression import parse
from ..problem import SUITED
from ..studies import KINDS
from ..studies.cells import join_words, short_expression
from ..studies.read import Arm, Record, choices, labels, not_begun, planned_length, read, trainers
from ..studies.read import setting as setting_of
from ..studies.read import study as study_of_run


def study_of(folders: Sequence[Path]) -> Record:
    """The ``study.json`` of the first folder that holds a study, or is a part of one. Empty where none does."""
    for folder in map(Path.resolve, folders):
        for place in (folder, *folder.parents[:2]):
            if (place / "study.json").exists():
                study = read(place / "study.json")
                if place == folder or folder.relative_to(place).parts[0] in study.get("folders", ()):
                    return study
    return {}


def title(arms: Sequence[Arm], folders: Sequence[Path]) -> str:
    """The title of the page and the table. Of runs that belong to no study nobody has written down the data."""
    study, kind = study_of(folders), KINDS[arms[0].kind]
    said = kind.scale([run for arm in arms for run in arm.runs], study)
    return ", ".join(filter(None, (study.get("task") or study.get("data"), *said)))


def setting(arms: Sequence[Arm], study: Record, folders: Sequence[Path]) -> list[tuple[str, str]]:
    """The setting in words, what was trained and how: pairs of a name and a text."""
    runs = [run for arm in arms for run in arm.runs]
    about = runs[0].about
    parameters = next((run.summary["parameters"] for run in runs if run.summary and "parameters" in run.summary), None)
    parameters = about.get("parameters", parameters)
    examples = f", {about['examples']:,} examples in all" if "examples" in about else ""
    said = [
        ("Data", f"{study['task']} (a task of the user's own){examples}" if study.get("task") else None),
        ("Data", f"{study['data']}{examples}" if study.get("data") and not study.get("task") else None),
        ("Pictures", "changed batch by batch: " + ", ".join(study["augment"]) if study.get("augment") else None),
        ("Model", ", ".join([*_model(study), *([f"{parameters:,} parameters"] if parameters else [])])),
        *KINDS[arms[0].kind].words(about, study),
        ("Local training", _shared_trainer(arms)),
        ("Seeds", _seeds(arms)),
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


def _seeds(arms: Sequence[Arm]) -> str:
    runs = [run for arm in arms for run in arm.runs]
    there = {run.seed for run in runs}
    left = [not_begun(run).values() for run in runs]
    ahead = {seed for each in left if each for seed in set.intersection(*map(set, each))} - there
    return "; not begun: ".join(", ".join(map(str, sorted(seeds))) for seeds in (there, ahead) if seeds)


def chosen_said(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Auto's choices in each run, and why it made them."""
    return [
        (f"{arm.label}, seed {run.seed}, round {made['round']}", " ".join([f"{made['expression']}.", *made["why"]]))
        for arm in arms
        for run in arm.runs
        for made in choices(run)
    ]


def lengths_said(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """How long replies were, by field, in the first and the newest round of each method's first run; their bound."""
    said = []
    for arm in arms:
        run = arm.runs[0]
        where, lines = f"{arm.label}, seed {run.seed}", [line for line in run.rounds if line.get("norms")]
        for field in lines[-1]["norms"] if lines else ():
            ends = [line for line in lines if field in line["norms"]]
            ends = [ends[0], ends[-1]] if len(ends) > 1 else ends
            said.append((f"Norms of replies, {where}, {field}", "; ".join(_length(line, field) for line in ends)))
        if lines and "clipped" in lines[-1]:
            names = ("clipped", "clients", "lost_replies", "late_replies")
            longer, called, lost, late = (sum(line.get(name, 0) for line in lines) for name in names)
            everyone = called - lost + late
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


def expressions_of(arm: Arm) -> list[tuple[str, str]]:
    """The expressions of a method: its own, and those that it chose."""
    made = [(f"{arm.label}, seed {run.seed}", one["expression"]) for run in arm.runs for one in choices(run)]
    return [(arm.label, arm.expression), *dict.fromkeys(made)]


def _shared_trainer(arms: Sequence[Arm]) -> str | None:
    """How clients train, where that is the same with every method: labels leave it out then."""
    try:
        each = [trainers(parse(arm.expression)) for arm in arms]
    except ValueError:
        return None
    kinds = {complete(trainer) for some in each for trainer in some}
    return short_expression(kinds.pop()) if len(kinds) == 1 else None


def warnings(arms: Sequence[Arm], folders: Sequence[Path]) -> list[str]:
    """Sentences that a reader should know before comparing methods."""
    unit, said = arms[0].unit, []
    runs = [run for arm in arms for run in arm.runs]
    ahead = not_begun_said(arms, folders)
    if single := [arm.label for arm in arms if len({run.seed for run in arm.runs}) == 1 and arm.label not in ahead]:
        whose = "Every method" if len(single) == len(arms) else join_words(single)
        said.append(
            f"{whose} was trained with one seed: a difference may be chance. `--seeds 0,1,2` trains with three, and "
            f"the table then has deviations."
        )
    longest = max(run.length for run in runs)
    for arm in arms:
        for run in arm.runs:
            figures, wanted = "its figures are those of what there is", planned_length(run)
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
    seeds = {tuple(sorted({run.seed for run in arm.runs})) for arm in arms}
    if len(seeds) > 1:
        said.append("Methods have different seeds: a seed draws the split and the model, so they met different ones.")
    each = [{n: v for n, v in run.about.items() if n not in MAY_DIFFER} | setting_of(run) for run in runs]
    fixed = dict.fromkeys(name for one in each for name in one)
    found_by = {name: sorted({str(one.get(name)) for one in each}) for name in fixed}
    return said + [
        f"Runs differ in {name}: {join_words(values)}." for name, values in found_by.items() if len(values) > 1
    ]


def not_begun_said(arms: Sequence[Arm], folders: Sequence[Path]) -> dict[str, str]:
    """By method: the seeds that its studies plan and that have not begun anywhere, in words.

    Of methods without a run those below these folders.
    """
    named = [folder.resolve() for folder in folders]
    begun = {run.path.resolve().parent: arm for arm in arms for run in arm.runs}
    studies = {run.path.resolve().parent.parent: run for arm in arms for run in arm.runs}
    ahead: dict[str, set[int]] = {}
    for place, run in studies.items():
        names = _names(study_of_run(run), run.kind)
        for folder, seeds in not_begun(run).items():
            arm = begun.get(place / folder)
            if arm is not None:
                ahead.setdefault(arm.label, set()).update(set(seeds) - {each.seed for each in arm.runs})
            elif any((place / folder).is_relative_to(one) for one in named):
                ahead.setdefault(names.get(folder, folder), set()).update(seeds)
    return {
        label: f"seed{'s' if len(seeds) > 1 else ''} {join_words(list(map(str, sorted(seeds))))}"
        for label, seeds in ahead.items()
        if seeds
    }


def _names(study: Record, kind: str) -> dict[str, str]:
    """The methods of a study by their folders, as short as the table has them."""
    methods = study.get("methods", ())
    short = labels({text: _name(text, kind) for text in methods})
    return dict(zip(study.get("folders", ()), (short[text] for text in methods), strict=False))


def _name(text: str, kind: str) -> str:
    """The name of a method that has not begun; of a module of the user's own, which a report does not run, the text."""
    try:
        return repr(KINDS[kind].method(text))
    except ValueError:
        return text


MAY_DIFFER = (
    *("method", "name", "seed", "model", "data", "test", "examples", "versions", "plan", "device", "staleness"),
)
"""What ``run.json`` says that may differ between runs of one study."""
