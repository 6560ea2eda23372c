"""How each program here ends: what its user can mend is said in one line, as `croc` says it."""

import sys
from collections.abc import Callable
from pathlib import Path

from croc.errors import UserError


def run(main: Callable[[], None]) -> None:
    try:
        main()
    except UserError as error:
        program = Path(sys.argv[0]).stem
        print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
