"""What a figure was measured on and with."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("croc", "torch", "torchvision", "timm", "numpy", "pillow", "faiss-cpu")


def hardware(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    return {"gpu": gpu, "cpu": processor(), "cores": len(os.sched_getaffinity(0))}


def versions() -> dict[str, str | None]:
    python = {"python": platform.python_version(), "cuda": torch.version.cuda}
    return python | {name: found(name) for name in PACKAGES}


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def found(package: str) -> str | None:
    """Its version; None where it is used from a folder, without having been installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
