"""The default photographs of `croc show`.

Both are CC0, from scikit-image's samples, reduced: cat.jpg by Stéfan van der Walt, coffee.jpg by
Rachel Michetti.
"""

from pathlib import Path


def own_photographs() -> tuple[str, ...]:
    return tuple(map(str, sorted(Path(__file__).parent.glob("*.jpg"))))
