"""Python in which this project cannot be imported, as on the machine of someone else."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import croc
from croc.eval.features import VitBackbone
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD

WITHOUT_CROC = """
import sys

class NoCroc:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "croc":
            raise ImportError("croc cannot be had here")

sys.meta_path.insert(0, NoCroc())
"""
ALL_JOBS = """
import json
import numpy as np

jobs, given, found = json.load(open("jobs.json")), dict(np.load("given.npz")), {}
for job, code in jobs.items():
    space = {}
    exec(code, space)
    if "describe" not in space:
        kept = space.get("kept", ("images", "cls", "patches"))
        found |= {f"{job}|{name}": np.asarray(space[name]) for name in kept}
        continue
    for name, images in given.items():
        if name.startswith(job + "|"):
            cls, patches = space["describe"](images)
            found |= {f"{name} cls": np.asarray(cls), f"{name} patches": np.asarray(patches)}
np.savez("found.npz", **found)
"""


@dataclass(frozen=True)
class Job:
    """Code that defines describe(images) -> cls, patches, and images to be described by name; or
    code that leaves what it names in `kept`, by default, as a card's, images, cls and patches."""

    code: str
    images: dict[str, Tensor] = field(default_factory=dict)


def run_foreign(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_CROC + code],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def work_abroad(jobs: dict[str, Job], folder: Path) -> dict[str, dict[str, Tensor]]:
    """For each job "NAME cls" and "NAME patches" of its images, or what it kept."""
    (folder / "jobs.json").write_text(json.dumps({name: job.code for name, job in jobs.items()}))
    images = {f"{job}|{name}": x for job, its in jobs.items() for name, x in its.images.items()}
    np.savez(folder / "given.npz", **{name: value.numpy() for name, value in images.items()})
    done = run_foreign(ALL_JOBS, folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Tensor]] = {job: {} for job in jobs}
    with np.load(folder / "found.npz") as arrays:
        for name, value in arrays.items():
            job, _, what = name.partition("|")
            found[job][what] = torch.from_numpy(value)
    return found


def card_code(folder: Path) -> str:
    """The one piece of Python in a folder's card."""
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    return code


@torch.no_grad()
def describe_here(what: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """CLS and patches as `croc.load_backbone` gives them."""
    backbone = croc.load_backbone(what)
    assert isinstance(backbone, VitBackbone)
    tokens = backbone.vit.forward_features(images)
    patches = backbone.features(images).flatten(2).transpose(1, 2)
    assert torch.equal(tokens[:, backbone.vit.num_prefix_tokens :], patches)
    return tokens[:, 0], patches


def normalise(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (images - mean) / std


def deviation(found: dict[str, Tensor], what: str, images: dict[str, Tensor]) -> dict[str, float]:
    """By image, the largest difference of CLS and patches from those of `croc.load_backbone`."""
    largest = {}
    for name, pixels in images.items():
        cls, patches = describe_here(what, pixels)
        assert found[f"{name} cls"].shape == cls.shape
        assert found[f"{name} patches"].shape == patches.shape
        both = (found[f"{name} cls"] - cls, found[f"{name} patches"] - patches)
        largest[name] = max(float(unlike.abs().max()) for unlike in both)
    return largest
