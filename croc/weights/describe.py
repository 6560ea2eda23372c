"""What a file of weights holds, found out without running any of it."""

from pathlib import Path

from croc.weights.files import printable, read_arguments, read_named_tensors
from croc.weights.layouts import recognise


def describe_file(path: Path) -> list[str]:
    """Layout, network and the arguments that its authors kept, a line each."""
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
