"""Tests share two cores among processes; OpenMP's threads would wait for each other's turns."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
