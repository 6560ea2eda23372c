"""A real loader over folders of bad files.

python -m tests.data.fuzz FOLDER TO.json: one epoch over a folder, as a run would read it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.data.bad_files import BATCH, CANVAS_PX, Expected, Verdict, make_files
from tests.train.kills import environment

WORKERS = 2
MEMORY_MB = 2048
"""Bound for the process and its workers together: they have to fit two large pictures at once."""


def read_epoch(folder: str) -> dict[str, Any]:
    """One epoch by a real loader: what it delivers of each file, and which it says have failed."""
    from croc.config import DataConfig
    from croc.data import make_loader, open_source
    from croc.data.loader import FailedFiles, batch_indices

    source = open_source(DataConfig(root=(folder,), canvas_px=CANVAS_PX), seed=0)
    count, failed, rows = len(source), FailedFiles(), {}
    steps = count // BATCH
    loader = make_loader(
        source,
        canvas_px=CANVAS_PX,
        batch=BATCH,
        seed=0,
        first_step=0,
        last_step=steps,
        workers=WORKERS,
    )
    for step, canvases in enumerate(loader):
        for name in failed.add(canvases.failed):
            print(f"skipped, cannot be decoded: {name}")
        _, indices = batch_indices(step, count, BATCH, 0)
        for row, index in enumerate(indices.tolist()):
            height, width = canvases.sizes[row].tolist()
            colour = canvases.pixels[row, :, :height, :width].float().mean((1, 2)).tolist()
            rows[source.name(index)] = {"size": (height, width), "colour": colour}
    return {"count": count, "rows": rows, "failed": failed.names}


def judge(expected: dict[str, Expected], told: dict[str, Any]) -> list[str]:
    """What is wrong, a line each."""
    images = {name for name, each in expected.items() if each.verdict is not Verdict.NO_IMAGE}
    failed = {name for name, each in expected.items() if each.verdict is Verdict.FAILED}
    kind = {name: each.kind for name, each in expected.items()}
    wrong = [f"not read: {kind[name]}: {name}" for name in sorted(images - told["rows"].keys())]
    wrong += [f"read: {name}" for name in sorted(told["rows"].keys() - images)]
    said = set(told["failed"])
    wrong += [f"not failed: {kind[name]}: {name}" for name in sorted(failed - said)]
    wrong += [f"failed: {kind.get(name)}: {name}" for name in sorted(said - failed)]
    for name in sorted((images - failed) & told["rows"].keys()):
        each, row = expected[name], told["rows"].get(name)
        if each.size is None or each.colour is None or row is None:
            continue
        far = max(abs(one - other) for one, other in zip(each.colour, row["colour"], strict=True))
        if tuple(row["size"]) != each.size or far > 10:
            wrong.append(f"not delivered: {each.kind}: {name}: {row} for {each}")
    return wrong


@dataclass(frozen=True)
class Watched:
    """A command that came to its end in time."""

    code: int
    out: str
    err: str
    seconds: float
    peak_mb: float


def watch(command: list[str], timeout_s: float) -> Watched:
    """Run it and look at the memory of all its processes; kill them all when the time is over."""
    began, peak = time.monotonic(), 0.0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, env=environment(), stdout=out, stderr=err, start_new_session=True
        )
        try:
            while process.poll() is None:
                if time.monotonic() - began > timeout_s:
                    raise AssertionError(f"not done in {timeout_s} s: {' '.join(command)}")
                peak = max(peak, sum(map(_memory_mb, _with_children(process.pid))))
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        err.seek(0)
        said, complained = (each.read().decode(errors="replace") for each in (out, err))
    return Watched(process.returncode, said, complained, time.monotonic() - began, peak)


def _with_children(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in children for each in _with_children(int(child)))]


def _memory_mb(pid: int) -> float:
    """Resident; a page that some processes share counts once among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):  # it has just ended
        return 0.0


def fuzz_loader(scratch: Path, count: int, seed: int, timeout_s: float) -> dict[str, Any]:
    """Make the files, read them, pack them; raises if anything is wrong."""
    folder = scratch / "files"
    expected = make_files(folder, count, seed)
    module = [sys.executable, "-m", "tests.data.fuzz"]
    seen = watch([*module, str(folder), str(scratch / "told.json")], timeout_s)
    assert seen.code == 0, seen.err
    told = json.loads((scratch / "told.json").read_text())
    wrong = judge(expected, told)
    assert not wrong, "\n".join([f"{len(wrong)} wrong", *wrong[:50]])
    assert len(seen.out.splitlines()) == len(told["failed"])
    assert seen.peak_mb < MEMORY_MB, seen.peak_mb
    packed = _pack(folder, scratch / "packed", told, timeout_s)
    counts = Counter(each.verdict.value for each in expected.values())
    return {
        **counts,
        "kinds": len({each.kind for each in expected.values()}),
        "seconds": round(seen.seconds, 1),
        "peak_mb": round(seen.peak_mb),
        "pack_seconds": round(packed.seconds, 1),
        "pack_peak_mb": round(packed.peak_mb),
    }


def _pack(folder: Path, to: Path, told: dict[str, Any], timeout_s: float) -> Watched:
    options = ["--to", str(to), "--canvas-px", str(CANVAS_PX), "--workers", str(WORKERS)]
    packed = watch([sys.executable, "-m", "croc", "data", "pack", str(folder), *options], timeout_s)
    assert packed.code == 0, packed.err
    page = json.loads((to / "pack.json").read_text())
    assert sorted(page["failed"]) == sorted(told["failed"])
    assert page["count"] == told["count"] - len(told["failed"])
    first, *skipped = packed.out.splitlines()
    assert first.startswith(f"{page['count']:,} photographs in ")
    assert len(skipped) == min(20, len(page["failed"]))
    assert all(line.startswith("skipped, cannot be decoded: ") for line in skipped)
    assert packed.peak_mb < MEMORY_MB, packed.peak_mb
    return packed


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(read_epoch(sys.argv[1])))
