"""How functions are compiled: for the shapes that they are given, anew for others.

By default torch would take a second shape for a sign of many, and make code for any shape, which
is slower. Here a run has two at most, the early views and the later ones.
"""

from functools import partial

import torch

compiled = partial(torch.compile, dynamic=False)
