"""sweep.json: what was asked, what each run came to, and means over the seeds."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean, stdev
from typing import Any

from croc.eval.table.command import Wanted
from croc.eval.table.layout import METRICS, data_titles
from croc.lab.bench.surroundings import hardware, versions
from croc.lab.sweep.options import SweepConfig
from croc.lab.sweep.run import Outcome
from croc.lab.sweep.scoring import Scorer, place_name
from croc.lab.sweep.settings import Run, Setting, run_name
from croc.train.run_folder import FREE

FORMAT = 1


def identify(
    recipe: str, config: SweepConfig, settings: Sequence[Setting], wanted: Sequence[Wanted]
) -> dict[str, Any]:
    """What makes a sweep this one; not how it is carried out, nor where it lies."""
    return plain(
        {
            "recipe": recipe,
            "settings": [setting.name for setting in settings],
            "seeds": config.seeds,
            "hold_out": config.hold_out,
            "untrained": config.untrained,
            "evaluations": [place_name(each.column, each.data) for each in wanted],
            "protocols": {
                place_name(each.column, each.data): dataclasses.asdict(each.config)
                for each in wanted
            },
            "recipes": {setting.name: setting.recipe for setting in settings},
            "configs": {setting.name: _learned(setting) for setting in settings},
        }
    )


def _learned(setting: Setting) -> dict[str, dict[str, Any]]:
    return {
        section: {
            name: value
            for name, value in values.items()
            if (section, name) not in FREE and (section, name) != ("run", "seed")
        }
        for section, values in dataclasses.asdict(setting.config).items()
    }


def differences(found: Any, asked: Any, name: str = "") -> Iterator[str]:
    """What an older page does not mention yet is as it was then, and no difference."""
    if isinstance(found, dict) and isinstance(asked, dict):
        for key, value in found.items():
            yield from differences(value, asked.get(key), f"{name}.{key}" if name else key)
    elif found != asked:
        yield f"{name} was {found}, now {asked}"


def make_page(
    command: dict[str, Any],
    fixed: dict[str, Any],
    runs: Sequence[Run],
    found: Mapping[str, dict[str, Any]],
    scorer: Scorer,
) -> dict[str, Any]:
    """From what was found of each run, by its name."""
    settings = list({run.setting.name: run.setting for run in runs}.values())
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(scorer.machine.device),
        "versions": versions(),
        "command": {**command, "sweep": dataclasses.asdict(command["sweep"])},
        "configuration": fixed,
        "columns": _columns(scorer.wanted),
        "settings": [_setting(each, _of(each, runs, found)) for each in settings],
        "untrained": shared_untrained(list(found.values())),
        "to_come": [run.name for run in runs if run.name not in found],
    }


def _of(
    setting: Setting, runs: Sequence[Run], found: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    names = [run.name for run in runs if run.setting.name == setting.name]
    return [found[name] for name in names if name in found]


def runs_of(page: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a page says of its runs, by their names."""
    return {
        run_name(setting["name"], run["seed"]): run
        for setting in page["settings"]
        for run in setting["runs"]
    }


def _columns(wanted: Sequence[Wanted]) -> list[dict[str, str]]:
    titles = data_titles(dict.fromkeys(each.data for each in wanted))
    return [
        {
            "place": place_name(each.column, each.data),
            "metric": _metric(each.protocol),
            "title": f"{titles[each.data]}: {each.column}, {_metric(each.protocol)}",
        }
        for each in wanted
    ]


def _metric(protocol: str) -> str:
    return METRICS.get(protocol, ("mIoU",))[0]


def _setting(setting: Setting, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means are over the runs that have a score: `count` says how many those are."""
    return {
        "name": setting.name,
        "recipe": setting.recipe,
        "options": list(setting.options),
        "runs": list(runs),
        "scores": summarise([first_scores(run["scores"]) for run in runs]),
        "untrained": summarise([first_scores(run["untrained"]) for run in runs]),
        "metrics": summarise([run["metrics"] for run in runs if not run["failed"]]),
    }


def run_page(outcome: Outcome) -> dict[str, Any]:
    """As it is read again from sweep.json."""
    page = {
        "seed": outcome.run.seed,
        "folder": str(outcome.run.folder),
        "failed": outcome.failed,
        "steps": outcome.steps,
        "images_seen": outcome.images,
        "training_s": round(outcome.training_s, 2),
        "evaluating_s": round(outcome.scored.seconds, 2),
        "scores": outcome.scored.scores,
        "untrained": outcome.untrained.scores,
        "metrics": outcome.metrics,
    }
    return plain(page)


def shared_untrained(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """Over the seeds, where all settings start from the same networks; else None."""
    by_seed: dict[int, dict[str, float]] = {}
    for run in runs:
        found = first_scores(run["untrained"])
        if found and by_seed.setdefault(run["seed"], found) != found:
            return None
    return summarise(list(by_seed.values()))


def first_scores(scores: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of each protocol the figure that papers report."""
    return {place: next(iter(found.values())) for place, found in scores.items()}


def summarise(found: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Mean and sample deviation over the seeds; of one seed there is no deviation."""
    values: dict[str, list[float]] = {}
    for each in found:
        for name, value in each.items():
            values.setdefault(name, []).append(value)
    return {
        name: {
            "mean": fmean(of_seeds),
            "deviation": stdev(of_seeds) if len(of_seeds) > 1 else None,
            "count": len(of_seeds),
        }
        for name, of_seeds in values.items()
        if all(isinstance(value, int | float) and math.isfinite(value) for value in of_seeds)
    }


def plain(value: Any) -> Any:
    """As JSON gives it back; it has no tuples, and no numbers for inf and nan."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def to_json(page: dict[str, Any]) -> str:
    return json.dumps(plain(page), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
