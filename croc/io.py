"""Atomic writes, locks, JSON lines, and the hardware and versions of a measurement."""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RENAMED = {
    "rate": "lr",
    "k_mean": "mean_k",
    "valid_share": "valid_fraction",
    "largest_share": "largest_assignment",
    "place": "position",
}
"""Metrics and gauges that earlier versions wrote under another name."""
MAX_NAME_BYTES = 200
"""The temporary path of a longer name has a hash: file systems allow 255 bytes."""
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "scipy", "pillow", "faiss-cpu")


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A temporary path next to `path`: renamed to it at the end, deleted after an error.

    `shared` is for a path that several processes may write at the same time.
    """
    name, process = path.name, f".{os.getpid()}" if shared else ""
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    partial = path.with_name(f"{name}{process}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def make_readable(path: Path) -> None:
    """Give a file the usual permissions: only its owner can read a file of safetensors."""
    os.umask(mask := os.umask(0))
    path.chmod(0o666 & ~mask)


def try_lock(file: IO[Any], byte: int = 0) -> bool:
    """Lock a byte of an open file until the file is closed or the process ends, however it ends;
    False if another process holds the lock. File systems without locks always grant it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # POSIX allows either for a lock that is taken
        return False
    except OSError:
        pass
    return True


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a JSON-lines file, without lines that were cut off by a kill."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with contextlib.suppress(ValueError, TypeError):
            lines.append(dict(json.loads(line)))
    return lines


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    return _renamed(read_lines(folder / "metrics.jsonl"))


def read_gauges(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's gauges.jsonl; none before the first checkpoint."""
    path = folder / "gauges.jsonl"
    return _renamed(read_lines(path)) if path.exists() else []


def _renamed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the names of earlier versions replaced."""
    return [{RENAMED.get(name, name): value for name, value in line.items()} for line in lines]


def versions() -> dict[str, str | None]:
    from croc import __version__

    return {"croc": __version__, "python": platform.python_version()} | {
        name: _version(name) for name in LIBRARIES
    }


def gpu_versions() -> dict[str, str | None]:
    """With the versions of CUDA and Triton."""
    import torch

    return {"cuda": torch.version.cuda, "triton": _version("triton")} | versions()


def _version(name: str) -> str | None:
    """None if the library is not installed under this name, as conda's faiss."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def hardware(device: "torch.device") -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    return {"gpu": gpu, "cpu": processor(), "cores": cores()}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not on Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def free_memory() -> int:
    """Bytes of main memory that this process may still use, by the machine's limit and those of its
    control groups (version 2), which containers and schedulers set."""
    try:
        machine = re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
        group = re.findall(r"^0::/(.*)", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:  # not on Linux
        return 2**32
    free = [1024 * int(machine[0])]
    folder = Path("/sys/fs/cgroup") / "".join(group)
    for parent in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: "max"
            limit = int((parent / "memory.max").read_text())
            used = int((parent / "memory.current").read_text())
            statistics = (parent / "memory.stat").read_text()
            cache = re.findall(r"^inactive_file (\d+)", statistics, re.MULTILINE)
            free.append(limit - used + int(cache[0]))
    return max(0, min(free))


def cores() -> int:
    """The number of CPU cores that this process may use, if the system reports it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
