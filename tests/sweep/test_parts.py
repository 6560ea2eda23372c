"""The parts of a sweep that need no training."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from croc.cli import _recipe as open_recipe
from croc.lab.sweep.options import SweepConfig, split_words
from croc.lab.sweep.page import differences, plain, summarise
from croc.lab.sweep.picture import make_figure, make_ticks
from croc.lab.sweep.run import last_metrics, seconds_of
from croc.lab.sweep.settings import plan_runs, plan_settings
from croc.lab.sweep.tables import to_markdown


def names(*values: str, vary: str = "cluster.position-weight") -> list[str]:
    config = SweepConfig(to="x", data=("scenes",), vary=vary, values=values)
    return [setting.name for setting in plan_settings(config, "demo", [], open_recipe)]


def test_numbers_come_in_their_order_and_names_as_given():
    assert names("10", "inf", "2", "0.5") == ["0.5", "2", "10", "inf"]
    assert names("values", "keys", "last", vary="cluster.tokens") == ["values", "keys", "last"]
    assert names("0.25 1", "0.1 1", vary="views.scale") == ["0.25 1", "0.1 1"]


def test_options_need_be_valid_only_together():
    """k-select fixed needs the k-max that is varied."""
    config = SweepConfig(to="x", data=("scenes",), vary="cluster.k-max", values=("3", "2"))
    settings = plan_settings(config, "demo", ["--cluster.k-select", "fixed"], open_recipe)
    found = [vars(setting.config)["cluster"] for setting in settings]
    assert [(each.k_select, each.k_max) for each in found] == [("fixed", 2), ("fixed", 3)]


def test_runs_come_seed_by_seed():
    config = SweepConfig(to="x", data=("scenes",), settings=("a b=", "λ=--loss.alpha 2"))
    settings = plan_settings(config, "demo", [], open_recipe)
    runs = plan_runs(settings, (3, 1), Path("to"))
    folders = ["a-b-seed-3", "λ-seed-3", "a-b-seed-1", "λ-seed-1"]
    assert [run.folder.name for run in runs] == folders
    assert [run.config.run.seed for run in runs] == [3, 3, 1, 1]


def test_words_go_to_whom_they_are_for():
    recipe = ["--optim.batch", "4", "--views.scale", "0.1", "1"]
    own = ["--sweep.values", "-1", "inf", "--sweep.settings=a="]
    evaluation = ["--linear.rates", "1", "2", "--device=cpu", "--workers", "3"]
    for words in (split_words(recipe + own + evaluation), split_words(evaluation + own + recipe)):
        assert (words.recipe, words.sweep, words.evaluation) == (recipe, own, evaluation)


def test_seconds_are_those_of_all_parts_of_a_run():
    assert seconds_of([{"seconds": value} for value in (1.0, 2.5, 0.5, 3.0, 0.25)]) == 5.75
    assert seconds_of([]) == 0


def test_metrics_are_means_over_the_last_tenth():
    lines = [{"step": n, "epoch": 0, "k_mean": float(n), "seconds": 1.0} for n in range(20)]
    assert last_metrics(lines) == {"k_mean": 18.5}
    assert last_metrics(lines[:5]) == {"k_mean": 4.0}
    assert last_metrics([]) == {}


def test_means():
    found = summarise([{"a": 1.0, "b": 2.0}, {"a": 2.0, "c": float("nan")}])
    assert found["a"] == {"mean": 1.5, "deviation": pytest.approx(0.5**0.5), "count": 2}
    assert found["b"] == {"mean": 2.0, "deviation": None, "count": 1}
    assert "c" not in found


def test_differences_pass_over_what_is_new():
    assert list(differences({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}})) == []
    assert list(differences({"a": {"b": 1}}, {"a": {}})) == ["a.b was 1, now None"]
    assert plain({"x": (float("inf"), float("-inf"), 1.5)}) == {"x": ["inf", "-inf", 1.5]}


def made_up_page(names: list[str], **changes: Any) -> dict[str, Any]:
    def setting(place: int, name: str) -> dict[str, Any]:
        score = {"mean": 20.0 + place, "deviation": 1.0, "count": 2}
        run = {"failed": None, "images_seen": 9, "training_s": 1.0, "evaluating_s": 2.0}
        values = ({"p": {"mIoU": 19.0 + place}}, {"p": {"mIoU": 21.0 + place}})
        return {
            "name": name,
            "scores": {"p": score},
            "untrained": {"p": score},
            "metrics": {"k_mean": score, "valid_share": score},
            "runs": [{**run, "seed": seed, "scores": each} for seed, each in enumerate(values)],
        }

    return {
        "date": "2026-01-01",
        "hardware": {"gpu": "no GPU", "cpu": "a CPU with a rather long name, 3.5 GHz"},
        "versions": {"croc": "0"},
        "command": {"sweep": {"vary": None}},
        "configuration": {"recipe": "demo", "hold_out": 0.25},
        "columns": [{"place": "p", "title": "Scenes: linear, mIoU", "metric": "mIoU"}],
        "settings": [setting(*each) for each in enumerate(names)],
        "untrained": None,
        "to_come": [],
        **changes,
    }


@pytest.mark.parametrize(
    "names", [["1"], ["a", "b" * 40, r"$\nonsense$ c"], [f"setting number {n}" for n in range(20)]]
)
def test_nothing_in_the_picture_is_clipped_or_overlaps(names: list[str]):
    figure = make_figure(made_up_page(names))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    whole = figure.bbox
    for axes in figure.axes:
        box = axes.get_tightbbox(renderer)
        assert box is not None
        assert box.x0 >= whole.x0 - 1
        assert box.y0 >= whole.y0 - 1
        assert box.x1 <= whole.x1 + 1
        assert box.y1 <= whole.y1 + 1
    labels = [each.get_window_extent(renderer) for each in figure.axes[0].get_xticklabels()]
    if not make_ticks(names).slanted:
        assert all(a.x1 <= b.x0 for a, b in pairwise(labels))


@pytest.mark.parametrize(("names", "joined"), [(["1", "2", "inf"], True), (["keys", "2"], False)])
def test_a_line_joins_numbers_and_not_names(names: list[str], joined: bool):
    scores, clusters, shares = make_figure(made_up_page(names)).axes
    means = [line for line in scores.lines if line.get_marker() == "D"]
    assert [list(line.get_xdata()) for line in means] == [list(range(len(names)))]
    lines = [*means, *clusters.lines, *shares.lines]
    assert [line.get_linestyle() for line in lines] == (
        ["-", "-", "--"] if joined else ["None"] * 3
    )
    # Each setting has a network of its own here, and before training no line joins those.
    dashed = [line for line in scores.lines if line.get_linestyle() == "--"]
    assert [sum(line.get_xdata()) / 2 for line in dashed] == list(range(len(names)))


@pytest.mark.parametrize(("with_clusters", "panels"), [(0, 1), (1, 1), (2, 2)])
def test_clusters_are_drawn_where_they_can_be_compared(with_clusters: int, panels: int):
    page = made_up_page(["CrOC", "CrOC again", "DINO"])
    for setting in page["settings"][with_clusters:]:
        setting["metrics"] = {}
    shown = [
        axes for axes in make_figure(page).axes if axes.get_visible() and axes.get_title("left")
    ]
    assert len(shown) == panels


def test_a_name_may_hold_anything():
    text = to_markdown(made_up_page(["a | b", "<i>*c*</i>"]))
    assert r"| a \| b |" in text
    assert r"\<i\>\*c\*\</i\>" in text
    assert "Scored on 25% of the training parts" in text
