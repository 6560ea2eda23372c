"""Small pieces of HTML. Whatever was read is escaped here, by `text`."""

from croc.lab.web.page import text

COLOURS = 8


def swatch(run: int | None, faint: bool = False) -> str:
    """The colour of a run, by its place among the runs; gray for what is of none of them."""
    return f'<span class="swatch {_kind(run, faint)}" aria-hidden="true"></span>'


def colour(run: int | None) -> str:
    """As classes: after eight runs the colours return, dashed."""
    if run is None:
        return "run-none"
    return f"run-{run % COLOURS}" + (" dashed" if run % (2 * COLOURS) >= COLOURS else "")


def _kind(run: int | None, faint: bool) -> str:
    return colour(run) + (" faint" if faint else "")


def notes(said: list[str]) -> str:
    return "".join(f'<p class="note">{text(note)}</p>\n' for note in said)


def section(name: str, title: str, inside: str) -> str:
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{text(title)}</h2>\n'
        f"{inside}\n</section>\n"
    )


def bar(share: float, run: int | None, faint: bool = False) -> str:
    """A share of the width; its number stands beside it as text."""
    width = 100 * min(1.0, max(0.0, share))
    return (
        f'<svg class="bar {_kind(run, faint)}" aria-hidden="true" focusable="false">'
        f'<rect class="ground" width="100%" height="100%"/>'
        f'<rect class="value" width="{width:.2f}%" height="100%"/></svg>'
    )


def short(value: float, digits: int = 4) -> str:
    """1,234,567 and 0.001234: as many digits as one can read."""
    size = abs(value)
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3g}"
    return f"{value:.{digits}g}"
