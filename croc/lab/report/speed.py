"""Where a step's time goes, from the bench.json that `croc bench` left in a run's folder."""

from typing import Any

from croc.lab.report.html import bar, short, swatch
from croc.lab.report.reading import Run, number_in, read_json
from croc.lab.web.page import text

FILE = "bench.json"
SETTINGS = 12


def speed(run: Run, number: int) -> tuple[str, list[str]]:
    """A card for each setting that was measured, and what had to be left out."""
    try:
        page = read_json(run.folder / FILE)
    except (OSError, ValueError) as error:
        return "", [f"{run.name}: {FILE} cannot be read ({error}), and is left out"]
    if page is None:
        return "", []
    found = _measured(page)
    if not found:
        return "", [f"{run.name}: {FILE} holds no figures of ours, and is left out"]
    where = _where(page)
    return "".join(_card(run, number, *each, where) for each in found[:SETTINGS]), []


def _measured(page: Any) -> list[tuple[str, dict[str, float], dict[str, Any]]]:
    """Label, milliseconds by stage and all figures, of what is of the right form."""
    entries = page.get("settings") if isinstance(page, dict) else None
    found = []
    for entry in entries if isinstance(entries, list) else []:
        figures = entry.get("figures") if isinstance(entry, dict) else None
        split = figures.get("split_ms") if isinstance(figures, dict) else None
        if isinstance(figures, dict) and isinstance(split, dict):
            stages = {str(name): taken for name in split if (taken := number_in(split[name]))}
            if stages and sum(stages.values()) > 0:
                found.append((str(entry.get("label", "")), stages, figures))
    return found


def _where(page: dict[str, Any]) -> str:
    device = page.get("hardware")
    if not isinstance(device, dict):
        return ""
    gpu = str(device.get("gpu", "no GPU"))
    return str(device.get("cpu", "")) if gpu == "no GPU" else gpu


def _card(
    run: Run, number: int, label: str, stages: dict[str, float], figures: dict[str, Any], where: str
) -> str:
    whole = sum(stages.values())
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td class="wide-bar">{bar(taken / whole, number)}'
        f'</td><td class="number">{short(taken)} ms</td>'
        f'<td class="number">{taken / whole:.1%}</td></tr>\n'
        for name, taken in stages.items()
    )
    rate, peak = number_in(figures.get("images_per_s")), number_in(figures.get("peak_gib"))
    fast = "" if rate is None else f"{short(rate)} images a second"
    large = "" if peak is None else f"at most {peak:.2f} GiB on the GPU"
    said = " · ".join(filter(None, (where, fast, large)))
    return (
        f'<article class="card">\n<h3 class="run-name">{swatch(number)}{text(run.name)}'
        f'{text(": " + label) if label else ""}</h3>\n<p class="soft small">{text(said)}</p>\n'
        f'<table class="bars stages"><caption class="visually-hidden">A step by stage</caption>\n'
        f'<thead class="visually-hidden"><tr><th scope="col">stage</th><th scope="col"></th>'
        f'<th scope="col">time</th><th scope="col">share</th></tr></thead>\n'
        f"<tbody>{rows}</tbody></table>\n</article>\n"
    )
