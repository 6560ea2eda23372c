"""The command line. Heavy modules are imported only by the command that needs them."""

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro

from croc import __version__
from croc.config import CrocConfig, DataConfig, option_names, parse, require
from croc.errors import Interrupted, LostPeerError, UserError
from croc.eval.protocols import PROTOCOLS
from croc.eval.protocols import run_command as evaluate_command
from croc.recipes import RECIPES, demo, open_recipe
from croc.signals import exit_process, is_first_process, process_number
from croc.tables import one_line

HELP = """CrOC: dense visual features from unlabeled images of scenes.

  croc demo                          train a small ViT on synthetic scenes (minutes on a laptop)
  croc pretrain RECIPE [OPTIONS]     pre-train on your own images
  croc pretrain RECIPE --dry-run     estimate the time, memory and disk space a run needs
  croc evaluate linear|kmeans|within|incontext|video|all --weights WEIGHTS --data DATA
                                     evaluate the dense features of a backbone
  croc evaluate fewlabel --weights WEIGHTS --data DATA
                                     evaluate with only 1, 5, 20 … labeled images
  croc evaluate table --weights WEIGHTS ... --data DATA ...
                                     compare several models in one table
  croc evaluate curve --weights RUN ... --data DATA ...
                                     plot scores over the course of training
  croc show clusters [IMAGE ...] --run RUN
                                     plot the clusters of each head in two views of an image
  croc show merging IMAGE --run RUN  plot how clusters are merged, with the cost at each K
  croc show features [IMAGE ...] --run RUN
                                     plot token PCA, similarity to a patch, attention maps
  croc show report RUN ...           write an HTML report: curves, clusters, scores, settings
  croc show weights FILE             inspect a checkpoint from CrOC or another project
  croc app [RUN [RUN2]]              explore the clusters of two crops in a browser
  croc app label FOLDER --weights WEIGHTS
                                     label images by clicking patches, in a browser
  croc segment fit --weights WEIGHTS --data folder:LABELED --to HEAD
                                     train a segmentation head on a few labeled images
  croc segment predict HEAD IMAGES ... --to MASKS
                                     write a mask for every image in a folder
  croc segment discover IMAGES ... --weights WEIGHTS --classes K --to HEAD
                                     segment images without labels, by clustering
  croc segment export HEAD --to FILE.onnx|FILE.pt2
                                     export the backbone and head as one network
  croc export RUN --to timm|transformers|onnx
                                     export a run's backbone and a model card to a folder
  croc export RUN --to NAME.safetensors
                                     export to a single file that --weights and --init can load
  croc export RUN --to ... --push USER/NAME
                                     upload it to the Hugging Face Hub, as hf:USER/NAME
  croc data pack SOURCE ... --to FOLDER
                                     decode images once, for faster data loading
  croc bench RECIPE [OPTIONS]        time the training step of a recipe on this machine
  croc sweep RECIPE --sweep.vary OPTION --sweep.values A B ... --sweep.data DATA --sweep.to FOLDER
                                     run an ablation: train and evaluate with each value, then plot

Every command accepts --help. croc pretrain --help lists the recipes; croc --version prints the
version.
"""

WORKER_DIED = "a loader process was killed, often because memory ran out: lower"
OUT_OF_MEMORY = "out of GPU memory: check whether other programs use the GPU, or lower"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; user errors become a one-line message and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _run(words)
        sys.stdout.flush()  # here, where a closed pipe is handled
        return 0
    except UserError as error:
        message, code = one_line(str(error)), 2
    except LostPeerError as error:
        message, code = str(error), 1
    except Interrupted as error:
        if not is_first_process():  # Lightning takes another's code for a crash
            return 0
        message, code = str(error), error.exit_code
    except BrokenPipeError:  # `croc … | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        message, code = f"{error.strerror or error}{where}", 2
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which may not be imported
            message, code = f"{OUT_OF_MEMORY} {memory_options(words, on_gpu=True)}", 2
        elif "DataLoader worker" in str(error):
            message, code = f"{WORKER_DIED} {memory_options(words, on_gpu=False)}", 1
        else:
            raise
    except KeyboardInterrupt as error:
        message, code = str(error) or "interrupted", 130
    name = "croc" if is_first_process() else f"croc, process {process_number()}"
    print(f"{name}: {message}", file=sys.stderr)
    return code


def memory_options(words: Sequence[str], *, on_gpu: bool) -> str:
    """What a command may lower to need less memory."""
    is_streamed = words[:2] in (["segment", "predict"], ["segment", "discover"])
    if on_gpu:
        return "--batch" if is_streamed else "the batch size (--linear.batch) or the image size"
    if words[0] in ("demo", *WITH_RECIPE):
        options = "--data.workers or --data.max-side-px"
        return f"{options}; the same command resumes from the last checkpoint"
    return "--workers" + "; the same command makes the remaining masks" * is_streamed


def _run(arguments: list[str]) -> None:
    if arguments == ["--version"]:
        print(f"croc {__version__}")
        return
    groups = {words[0] for words in COMMANDS if len(words) > 1}
    group = arguments[0] if arguments and arguments[0] in groups else None
    rest = arguments[1:] if group else arguments
    if not rest or rest[0] in ("-h", "--help", "help"):
        start, *entries = re.split(r"\n(?=  croc )", HELP)
        if group:
            entries = [entry for entry in entries if entry.startswith(f"  croc {group} ")]
        print("\n".join([start, *entries]))
        return
    if arguments[0] in WITH_RECIPE and (len(arguments) == 1 or arguments[1] in ("-h", "--help")):
        print_recipes(arguments[0])
        return
    for words, command in COMMANDS.items():
        if tuple(arguments[: len(words)]) == words:
            if command(arguments[len(words) :]) is False:
                sys.exit(1)
            return
    known = [" ".join(words) for words in COMMANDS]
    name = " ".join(arguments[: 2 if group else 1])
    near = difflib.get_close_matches(name, known, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"available: {', '.join(known)}"
    raise UserError(f"unknown command {name!r}; {hint}")


def print_recipes(command: str) -> None:
    print(f"usage: croc {command} RECIPE [OPTIONS]\n\nRecipes (or a run's config.json):")
    for name, recipe in RECIPES.items():
        print(f"  {name:18}{(recipe.__doc__ or '').splitlines()[0]}")
    print(f"\nOptions of a recipe: croc {command} RECIPE --help")
    if command == "pretrain":
        print("Add --dry-run to estimate time, memory and disk space instead of training.")


def run_module(module: str, *arguments: Any) -> bool | None:
    """A command with its own module, which is imported only now."""
    return importlib.import_module(module).run_command(*arguments)


def pretrain_command(arguments: list[str]) -> None:
    default, recipe = open_recipe(arguments[0])
    flags = [word for word in arguments[1:] if word != "--dry-run"]
    config = parse(type(default), flags, f"croc pretrain {arguments[0]}", default)
    if config.model.init != default.model.init:
        from croc.weights.init import follow_init

        config = follow_init(config, recipe, option_names(arguments))
    if "--dry-run" in arguments:
        from croc.lab.dry_run import dry_run

        dry_run(config, recipe)
        return
    from croc.lab.report.hook import ReportHook
    from croc.train.loop import pretrain

    folder = pretrain(config, recipe, ReportHook)
    if is_first_process():
        report = "report.html, " if config.run.report else ""
        print(f"the run is in {folder}: {report}config.json, metrics.jsonl, checkpoints/")


def demo_command(arguments: list[str]) -> bool:
    config = parse(CrocConfig, arguments, "croc demo", demo())
    from croc.lab.demo import run_demo

    return run_demo(config)


@dataclass(frozen=True)
class ShowWeights:
    """Print the architecture in a weights file and, if stored, its training arguments."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A run folder, a checkpoint (from CrOC, timm or another project), bundled weights, or
    hf:USER/NAME. Pickled code is never executed."""


def weights_command(arguments: list[str]) -> None:
    options = parse(ShowWeights, arguments, "croc show weights")
    from croc.weights.open import describe_file

    print(*describe_file(Path(options.file)), sep="\n")


@dataclass(frozen=True)
class Pack:
    """Decode images once, into a folder that is faster to read during training."""

    sources: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="SOURCE ..."),
    ]
    """Folders or tar shards, as for --data.root."""
    to: str
    """The folder to create."""
    max_side_px: int = DataConfig.max_side_px
    """Maximum length of the longer side, in pixels; larger images are downscaled."""
    workers: int | None = None
    """Data loading workers; by default one per CPU core, at most 16."""


def pack_command(arguments: list[str]) -> None:
    options = parse(Pack, arguments, "croc data pack")
    require(bool(options.sources), "no images: pass a folder or tar shards as SOURCE")
    from croc.data.loader import worker_count
    from croc.data.pack import pack
    from croc.data.sources import open_source

    config = DataConfig(
        root=options.sources, max_side_px=options.max_side_px, workers=options.workers
    )
    source = open_source(config, seed=0)
    count, failed = pack(source, options.to, options.max_side_px, worker_count(config))
    print(f"{count:,} images in {options.to}; train with --data.root {options.to}")
    for name in failed[:20]:
        print(f"skipped, cannot be decoded: {name}")


def export_command(arguments: list[str]) -> None:
    from croc.weights.export import Export, export

    print(*export(parse(Export, arguments, "croc export")), sep="\n")


def segment_command(name: str, arguments: list[str]) -> None:
    """Calls the function in the module of its name."""
    from croc.segmentation import options

    if name == "fit":
        request: Any = options.parse_fit(arguments)
    else:
        kind = getattr(options, f"{name.capitalize()}Options")
        request = [parse(kind, arguments, f"croc segment {name}")]
    module = importlib.import_module(f"croc.segmentation.{name}")
    print(*getattr(module, name)(*request), sep="\n")


COMMANDS: dict[tuple[str, ...], Callable[[list[str]], bool | None]] = {
    ("demo",): demo_command,
    ("pretrain",): pretrain_command,
    **{
        ("evaluate", name): partial(evaluate_command, name)
        for name in (*PROTOCOLS, "fewlabel", "all", "table", "curve")
    },
    **{
        ("show", kind): partial(run_module, "croc.lab.show", kind)
        for kind in ("clusters", "merging", "features")
    },
    ("show", "report"): partial(run_module, "croc.lab.report.page"),
    ("show", "weights"): weights_command,
    **{
        ("segment", name): partial(segment_command, name)
        for name in ("fit", "predict", "discover", "export")
    },
    ("data", "pack"): pack_command,
    ("bench",): partial(run_module, "croc.lab.bench"),
    ("sweep",): partial(run_module, "croc.lab.sweep"),
    ("export",): export_command,
    ("app",): partial(run_module, "croc.lab.app"),
}
"""A command that returns False has partly failed: exit code 1."""
WITH_RECIPE = ("pretrain", "bench", "sweep")


def run() -> NoReturn:
    """The `croc` command."""
    # Large CPU tensors in huge pages: page faults took half of the time of a linear evaluation.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    exit_process(main())


if __name__ == "__main__":
    run()
