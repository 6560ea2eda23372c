"""How each program here ends: what its user can mend is said in one line, as `croc` says it."""

import sys
from collections.abc import Callable
from pathlib import Path

from croc.errors import UserError
from croc.eval.table.layout import one_line


def run(main: Callable[[], None]) -> None:
    try:
        main()
    except UserError as error:
        print(f"{Path(sys.argv[0]).stem}: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
