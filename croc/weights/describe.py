"""What a file of weights holds, found out without running any of it."""

from dataclasses import asdict
from pathlib import Path

from croc.weights.files import printable, read_arguments, read_named_tensors
from croc.weights.layouts import recognise
from croc.weights.page import read_page
from croc.weights.shipped import build_exported, find_weights


def describe_file(path: Path) -> list[str]:
    """Layout, network and the arguments that its authors kept, a line each."""
    path = find_weights(str(path))
    page = read_page(path)
    if page is not None:
        build_exported(path, page)
        return [f"{name}: {printable(value)}" for name, value in asdict(page).items()]
    found = recognise(read_named_tensors(path), str(path))
    parameters = sum(value.numel() for value in found.weights.values())
    measures = ", ".join(f"{name} {value}" for name, value in found.options.items())
    lines = [
        f"layout: {found.layout}",
        f"network: {found.architecture}, {parameters:,} numbers"
        + (f" ({measures})" * bool(measures)),
        f"left out: {len(found.dropped)} tensors",
    ]
    return lines + [f"{name}: {printable(value)}" for name, value in read_arguments(path).items()]
