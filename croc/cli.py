"""The command line. Heavy imports wait until their command is called."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from croc import __version__
from croc.arguments import parse
from croc.config import CrocConfig, DataConfig, PretrainConfig
from croc.errors import AskedToEnd, LostPeerError, UserError
from croc.eval.protocols import PROTOCOLS
from croc.lab.bench.options import BenchOptions, with_bench
from croc.recipes import RECIPES, demo
from croc.train.rank import is_first_process, process_number
from croc.train.run_folder import read_config

HELP = """CrOC: dense visual features from unlabelled scene photographs.

  croc demo                          train a small ViT on synthetic scenes, minutes on a laptop
  croc pretrain RECIPE [OPTIONS]     pre-train on your photographs
  croc evaluate linear|kmeans|within|incontext|video|all --weights WEIGHTS --data DATA
                                     score dense features by the paper's protocols
  croc evaluate table --weights WEIGHTS ... --data DATA ...
                                     several weights side by side, as the paper's tables
  croc evaluate curve --weights RUN ... --data DATA ...
                                     every checkpoint of runs: scores against images seen
  croc show clusters [IMAGE ...] --run RUN
                                     the clusters found in two views of an image, head by head
  croc show merging IMAGE --run RUN  how they were merged, step by step, and at what cost
  croc show features IMAGE ... --run RUN
                                     PCA of the tokens, similarity to a patch, CLS attention
  croc app RUN [RUN2]                explore the clusters of two crops, live in a browser
  croc show report RUN ...           a page of curves, clusters, scores and settings of runs
  croc show weights FILE             what a checkpoint holds, a published one too
  croc export RUN --to timm|transformers|torchhub|onnx|safetensors
                                     a run's backbone as a folder that others load, with its card
  croc export RUN --to NAME.safetensors
                                     the same as one file, for --weights and --init
  croc data pack SOURCE ... --to FOLDER
                                     decode the photographs once, for faster epochs
  croc bench RECIPE [OPTIONS]        how fast a recipe trains here, and where its time goes
  croc sweep RECIPE --sweep.vary OPTION --sweep.values A B ... [OPTIONS]
                                     an ablation: every value trained, scored and drawn

Each takes --help; croc --version tells the version. Recipes: {recipes}.
"""

WORKER_DIED = (
    "a loader process was killed, often because memory ran out: lower --data.workers or "
    "--data.canvas-px; the same command resumes from the last checkpoint"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what the user can mend is said in one line, with exit code 2."""
    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        print(f"{_speaker()}: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except LostPeerError as error:
        print(f"{_speaker()}: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)  # threads that still wait for the peer would abort the interpreter's exit
    except AskedToEnd as error:
        if not is_first_process():  # Lightning takes another's code for a crash
            return 0
        print(f"croc: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `croc … | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"{_speaker()}: {error.strerror or error}{where}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        print(f"{_speaker()}: {WORKER_DIED}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _speaker() -> str:
    return "croc" if is_first_process() else f"croc, process {process_number()}"


def _run(arguments: list[str]) -> None:
    if arguments == ["--version"]:
        print(f"croc {__version__}")
        return
    groups = {words[0] for words in COMMANDS if len(words) > 1}
    asks = arguments[1:] if arguments[:1] and arguments[0] in groups else arguments
    if not asks or asks[0] in ("-h", "--help", "help"):
        print(HELP.format(recipes=", ".join(RECIPES)))
        return
    for words, command in COMMANDS.items():
        if tuple(arguments[: len(words)]) == words:
            command(arguments[len(words) :])
            return
    known = ", ".join(" ".join(words) for words in COMMANDS)
    raise UserError(f"there is no command {' '.join(arguments[:2])!r}; there are: {known}")


def pretrain_command(arguments: list[str]) -> None:
    """croc pretrain RECIPE [OPTIONS], or croc pretrain RUN/config.json."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: croc pretrain RECIPE [OPTIONS]\n\nRecipes (or a run's config.json):")
        for name, recipe in RECIPES.items():
            print(f"  {name:18}{(recipe.__doc__ or '').splitlines()[0]}")
        print("\nTheir options: croc pretrain RECIPE --help")
        return
    default, recipe = _recipe(arguments[0])
    config = parse(type(default), arguments[1:], f"croc pretrain {arguments[0]}", default)
    from croc.train.loop import pretrain

    folder = pretrain(config, recipe)
    if is_first_process():
        files = "config.json, metrics.jsonl, checkpoints/, tensorboard/"
        report = "report.html, " if config.run.report else ""
        print(f"the run is in {folder}: {report}{files}")


def bench_command(arguments: list[str]) -> None:
    """croc bench RECIPE [OPTIONS]."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: croc bench RECIPE [OPTIONS]\n\nThe options: croc bench RECIPE --help")
        print(f"Recipes (or a run's config.json): {', '.join(RECIPES)}")
        return
    default, recipe = _recipe(arguments[0])
    if not isinstance(default, CrocConfig):
        raise UserError(f"croc bench measures CrOC's step, and {arguments[0]} is another method's")
    program = f"croc bench {arguments[0]}"
    asked = parse(BenchOptions, arguments[1:], program, with_bench(default))
    if asked.model.init is not None:
        raise UserError("croc bench measures with fresh weights: leave --init out")
    from croc.lab.bench.run import run_bench

    print(f"the results are in {run_bench(asked.recipe, asked.bench, recipe)}")


def sweep_command(arguments: list[str]) -> None:
    """croc sweep RECIPE [OPTIONS]; 1 if a run failed."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: croc sweep RECIPE [OPTIONS]\n\nThe options: croc sweep RECIPE --help")
        print(f"Recipes (or a run's config.json): {', '.join(RECIPES)}")
        return
    from croc.lab.sweep.command import run_command

    if not run_command(arguments[0], arguments[1:], _recipe):
        sys.exit(1)


def _recipe(name: str) -> tuple[PretrainConfig, str]:
    if name in RECIPES:
        return RECIPES[name](), name
    if name.endswith(".json"):
        config, recipe = read_config(Path(name))
        return replace(config, run=replace(config.run, folder=str(Path(name).parent))), recipe
    raise UserError(f"there is no recipe {name!r}; there are: {', '.join(RECIPES)}")


@dataclass(frozen=True)
class Pack:
    """Decode photographs once into a folder that trains faster."""

    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders, tar shards or pipes, as for --data.root."""
    to: str
    """The folder to make; it must not exist."""
    canvas_px: int = DataConfig.canvas_px
    """Longer side to which a photograph is reduced."""
    workers: int | None = None
    """Decoding processes; by default one a core, 16 at most."""


def pack_command(arguments: list[str]) -> None:
    """croc data pack SOURCE ... --to FOLDER."""
    asked = parse(Pack, arguments, "croc data pack")
    from croc.data import open_source
    from croc.data.loader import worker_count
    from croc.data.pack import pack

    config = DataConfig(root=asked.sources, canvas_px=asked.canvas_px, workers=asked.workers)
    report = pack(open_source(config, seed=0), asked.to, asked.canvas_px, worker_count(config))
    print(f"{report.count:,} photographs in {asked.to}; train with --data.root {asked.to}")
    for name in report.failed[:20]:
        print(f"skipped, cannot be decoded: {name}")


def show_command(kind: str, arguments: list[str]) -> None:
    """croc show clusters | merging | features [IMAGE ...] --run RUN."""
    from croc.lab.show.command import run_command

    run_command(kind, arguments)


@dataclass(frozen=True)
class ShowWeights:
    """Tell what a file of weights holds: its layout, its network, its authors' arguments."""

    file: Annotated[str, tyro.conf.Positional]
    """A checkpoint of ours, of timm's or of a published project; nothing in it is run."""


def show_weights_command(arguments: list[str]) -> None:
    """croc show weights FILE."""
    asked = parse(ShowWeights, arguments, "croc show weights")
    from croc.weights.describe import describe_file

    print(*describe_file(Path(asked.file)), sep="\n")


def show_report_command(arguments: list[str]) -> None:
    """croc show report RUN ... [--to PAGE]."""
    from croc.lab.report.command import run_command

    print(run_command(arguments))


def export_command(arguments: list[str]) -> None:
    """croc export RUN --to KIND, or --to NAME.safetensors."""
    from croc.weights.export import Export, export

    print(*export(parse(Export, arguments, "croc export")), sep="\n")


def app_command(arguments: list[str]) -> None:
    """croc app RUN [RUN2]."""
    from croc.lab.app.command import run_command

    run_command(arguments)


def demo_command(arguments: list[str]) -> None:
    """croc demo: the demo recipe, then its picture and where all lies."""
    config = parse(CrocConfig, arguments, "croc demo", demo())
    from croc.lab.demo import run_demo

    if not run_demo(config):
        sys.exit(1)


def evaluate_command(protocol: str, arguments: list[str]) -> None:
    """croc evaluate PROTOCOL --weights WEIGHTS --data DATA."""
    from croc.eval.command import run_command

    run_command(protocol, arguments)


def table_command(arguments: list[str]) -> None:
    """croc evaluate table --weights WEIGHTS ... --data DATA ...; 1 if a cell failed."""
    from croc.eval.table.command import run_command

    if not run_command(arguments):
        sys.exit(1)


def curve_command(arguments: list[str]) -> None:
    """croc evaluate curve --weights RUN ... --data DATA ...; 1 if a cell failed."""
    from croc.eval.curve.command import run_command

    if not run_command(arguments):
        sys.exit(1)


COMMANDS: dict[tuple[str, ...], Callable[[list[str]], None]] = {
    ("demo",): demo_command,
    ("pretrain",): pretrain_command,
    **{
        ("evaluate", protocol): partial(evaluate_command, protocol)
        for protocol in (*PROTOCOLS, "all")
    },
    ("evaluate", "table"): table_command,
    ("evaluate", "curve"): curve_command,
    **{("show", kind): partial(show_command, kind) for kind in ("clusters", "merging", "features")},
    ("show", "report"): show_report_command,
    ("show", "weights"): show_weights_command,
    ("data", "pack"): pack_command,
    ("bench",): bench_command,
    ("sweep",): sweep_command,
    ("export",): export_command,
    ("app",): app_command,
}


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip())


if __name__ == "__main__":
    sys.exit(main())
