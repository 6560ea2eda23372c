"""The model card beside a file of weights."""

import json
from collections.abc import Sequence
from typing import Any

from croc.evals.table.layout import DATA_TITLES, one_line
from croc.evals.table.text_formats import plain_markdown
from croc.weights.page import WeightsPage, bare

METHODS = {"croc": "CrOC", "dino": "DINO", "mae": "MAE"}
CITATION = """@inproceedings{stegmuller2023croc,
  title     = {{CrOC}: Cross-View Online Clustering for Dense Visual Representation Learning},
  author    = {Stegm{\\"u}ller, Thomas and Lebailly, Tim and Bozorgtabar, Behzad and
               Tuytelaars, Tinne and Thiran, Jean-Philippe},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year      = {2023}
}"""
CITED = {
    "dino": "DINO is Caron et al.'s (*Emerging Properties in Self-Supervised Vision Transformers*, "
    "ICCV 2021); it was trained here as a baseline of:",
    "mae": "MAE is He et al.'s (*Masked Autoencoders Are Scalable Vision Learners*, CVPR 2022); it "
    "was trained here as a baseline of:",
}


def make_card(
    name: str,
    architecture: str,
    dtype: str,
    numbers: int,
    page: WeightsPage,
    scores: Sequence[dict[str, Any]],
) -> str:
    """Markdown; what comes from outside is escaped."""
    method = METHODS.get(page.method, page.method)
    facts = _facts(architecture, dtype, numbers, page)
    lines = [
        *(f"# {plain_markdown(name)}", ""),
        *(f"Dense visual features, learned without labels by {plain_markdown(method)}.", ""),
        *("| | |", "|---|---|"),
        *(f"| {fact} | {_plain(value)} |" for fact, value in facts.items()),
        *("", "## Use", "", "```python", "import croc", ""),
        f"backbone = croc.load_backbone({json.dumps(name)})  # or the file's path",
        "features = backbone.features(images)  # B × 3 × h × w, normalised as ImageNet's are",
        *("```", "", "## Scores", "", *_scores(scores, dtype)),
        *("", "## Configuration", "", "```json", json.dumps(page.config, indent=2), "```"),
        *("", "## Citation", "", *_cited(page.method), "```bibtex", CITATION, "```", ""),
    ]
    return "\n".join(lines)


def _facts(architecture: str, dtype: str, numbers: int, page: WeightsPage) -> dict[str, str]:
    return {
        "architecture": f"{architecture}, timm's {page.model} with {page.depth} blocks and patches "
        f"of {page.patch_px} px, trained at {page.image_px} px",
        "weights": f"backbone of the {page.network}, {numbers:,} numbers in {dtype}, no heads",
        "recipe": f"{page.recipe}, step {page.step:,}",
        "data": " + ".join(page.data),
        "images seen": f"{page.images_seen:,} ({page.epochs:.3g} epochs)",
        "training took": "not known" if page.seconds is None else f"{page.seconds:,.0f} s",
        "licence": page.licence,
    }


def _scores(scores: Sequence[dict[str, Any]], dtype: str) -> list[str]:
    if not scores:
        return ["None were given."]
    rows = [
        f"| {_plain(str(line['protocol']))} | {_plain(_data(line))} | {_plain(_first(line))} "
        f"| {'as here' if line['as_here'] else 'before rounding'} | {_plain(_settings(line))} |"
        for line in scores
    ]
    before = "" if dtype == "float32" else f", which were float32 before they became {dtype}"
    return [
        *(f"In percent, of these weights{before}.", ""),
        *("| protocol | data | score | weights | settings |", "|---|---|---|---|---|", *rows),
    ]


def _data(line: dict[str, Any]) -> str:
    kind, _, path = str(line["data"]).partition(":")
    share = line.get("hold_out", 0.0)
    held = f", {100 * share:g}% of its training part" if share else ""
    return (DATA_TITLES.get(kind) or bare(path)) + held


def _first(line: dict[str, Any]) -> str:
    """The figure that papers report, with its deviation over the seeds."""
    name, value = next(iter(line["scores"].items()))
    spread = line["scores"].get("deviation")
    return f"{name} {value:.1f}" + (f" ± {spread:.1f}" if isinstance(spread, float) else "")


def _settings(line: dict[str, Any]) -> str:
    settings = {**line["config"], "precision": line["machine"]["precision"]}
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _cited(method: str) -> list[str]:
    return [CITED[method], ""] if method in CITED else []


def _plain(text: str) -> str:
    return plain_markdown(one_line(text))
