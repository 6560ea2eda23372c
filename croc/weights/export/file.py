"""One file with the weights and, in its metadata, all that is needed to build their network."""

from pathlib import Path

from safetensors.torch import save

from croc.errors import UserError
from croc.weights.card import make_card
from croc.weights.export.command import Export
from croc.weights.export.source import open_source, round_weights
from croc.weights.export.writing import write_files
from croc.weights.page import metadata_of


def export_file(asked: Export) -> tuple[Path, Path]:
    """Where the weights and their card lie."""
    target, card = Path(asked.to), Path(asked.to).with_suffix(".md")
    for path in (target, card):
        if path.exists() or path.is_symlink():
            raise UserError(f"--to {asked.to}: {path} exists, and nothing is overwritten")
    source = open_source(asked.run, asked.licence)
    rounded = round_weights(source, asked.dtype or "bfloat16", asked.scores)
    content = save(rounded.weights, metadata_of(source.page))
    write_files({target: content, card: make_card(target.stem, rounded.facts).encode()})
    return target, card
