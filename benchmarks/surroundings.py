"""What a figure was measured on and with."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

from croc.evals import results


def hardware(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    return {"gpu": gpu, "cpu": processor(), "cores": len(os.sched_getaffinity(0))}


def versions() -> dict[str, str | None]:
    return {"cuda": torch.version.cuda} | results.versions()


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
