"""`croc sweep`: flags to runs, all of them checked, then run by run."""

from collections.abc import Sequence
from pathlib import Path

from croc.arguments import parse
from croc.lab.sweep.options import SweepOptions, split_words, with_sweep
from croc.lab.sweep.settings import OpenRecipe, plan_runs, plan_settings


def run_command(recipe: str, arguments: Sequence[str], open_recipe: OpenRecipe) -> bool:
    """Read the flags and run the sweep; whether every run succeeded."""
    program = f"croc sweep {recipe}"
    default, called = open_recipe(recipe)
    if {"-h", "--help"} & set(arguments):
        parse(with_sweep(default), ["--help"], program)
    words = split_words(arguments)
    sweep = parse(SweepOptions, words.sweep, program).sweep
    settings = plan_settings(sweep, recipe, words.recipe, open_recipe)
    runs = plan_runs(settings, sweep.seeds, Path(sweep.to))
    from croc.lab.sweep.sweep import Sweep, run_sweep

    return run_sweep(Sweep(called, sweep, tuple(words.recipe), words.evaluation, settings, runs))
