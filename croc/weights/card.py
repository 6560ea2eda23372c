"""The model card beside a file of weights."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from croc.eval.table.layout import DATA_TITLES, one_line
from croc.eval.table.text_formats import plain_markdown
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
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


HUB_LICENCES = (
    *("mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "lgpl-3.0", "agpl-3.0"),
    *("mpl-2.0", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
)
"""Those that model hubs know by name, of which there are more."""


@dataclass(frozen=True)
class CardFacts:
    """What a card says of weights, whatever file they are in."""

    architecture: str
    dtype: str
    numbers: int
    page: WeightsPage
    scores: Sequence[dict[str, Any]]


def make_card(name: str, facts: CardFacts, use: str | None = None) -> str:
    """Markdown; what comes from outside is escaped. `use` is Python that loads the weights."""
    page = facts.page
    method = METHODS.get(page.method, page.method)
    # Of what it began with nothing is known, labels among it.
    learned = "trained further without labels" if _origin(page) else "learned without labels"
    lines = [
        *(f"# {plain_markdown(name)}", ""),
        *(f"Dense visual features, {learned} by {plain_markdown(method)}.", ""),
        *("| | |", "|---|---|"),
        *(f"| {fact} | {_plain(value)} |" for fact, value in _facts(facts).items()),
        *("", "## Use", "", "```python", (use or _own_use(name)).strip(), "```"),
        *("", "## Scores", "", *_scores(facts.scores, facts.dtype)),
        *("", "## Configuration", "", "```json", json.dumps(page.config, indent=2), "```"),
        *("", "## Citation", "", *_cited(page.method), "```bibtex", CITATION, "```", ""),
    ]
    return "\n".join(lines)


def front_matter(library: str, facts: CardFacts) -> str:
    """The lines of YAML by which a model hub files a card."""
    known = hub_licence(facts.page.licence)
    tags = ["self-supervised", "dense-features", "vision-transformer", facts.page.method]
    lines = [
        f"license: {known or 'other'}",
        *([] if known else ["license_name: see-the-card"]),
        f"library_name: {library}",
        "pipeline_tag: image-feature-extraction",
        *("tags:", *(f"- {json.dumps(tag)}" for tag in dict.fromkeys((library, *tags)))),
    ]
    return "\n".join(("---", *lines, "---", "", ""))


def hub_licence(licence: str) -> str | None:
    """The identifier that a note on a licence begins with, if it is one that hubs know."""
    first = re.split(r"[\s;,]", licence.strip().lower(), maxsplit=1)[0]
    return first if first in HUB_LICENCES else None


def _own_use(name: str) -> str:
    return f"""
import croc

backbone = croc.load_backbone({json.dumps(name)})  # or the file's path
features = backbone.features(images)  # B × 3 × h × w, normalised as ImageNet's are
"""


def _facts(facts: CardFacts) -> dict[str, str]:
    page = facts.page
    return {
        "architecture": f"{facts.architecture}, timm's {page.model} with {page.depth} blocks and "
        f"patches of {page.patch_px} px, trained at {page.image_px} px",
        "weights": f"backbone of the {page.network}, {facts.numbers:,} numbers in {facts.dtype}, "
        "no heads",
        "images": f"RGB in 0 … 1, minus {_triple(IMAGENET_MEAN)}, over {_triple(IMAGENET_STD)}; "
        f"sides are multiples of {page.patch_px} px",
        "recipe": f"{page.recipe}, step {page.step:,}",
        **({"started from": origin} if (origin := _origin(page)) else {}),
        "data": " + ".join(page.data),
        "images seen": f"{page.images_seen:,} ({page.epochs:.3g} epochs)",
        "training took": "not known" if page.seconds is None else f"{page.seconds:,.0f} s",
        "licence": page.licence,
    }


def _origin(page: WeightsPage) -> str | None:
    """What --init named."""
    model = page.config.get("model")
    init = model.get("init") if isinstance(model, dict) else None
    return init if isinstance(init, str) else None


def _triple(values: tuple[float, float, float]) -> str:
    return f"({', '.join(map(str, values))})"


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
    count = line.get("count", {})
    # A part of a data set may lie under the name of the whole.
    kinds = (("videos", "videos"), ("val", "images"))
    scored = "".join(f", {count[part]:,} {things}" for part, things in kinds if part in count)
    return (DATA_TITLES.get(kind) or bare(path)) + held + scored


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
