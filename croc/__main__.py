"""python -m croc."""

from croc.cli import run

run()
