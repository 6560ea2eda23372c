"""python -m croc."""

import sys

from croc.cli import main

sys.exit(main())
