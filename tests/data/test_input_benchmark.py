"""The benchmark of the input runs, at a tiny size, and its figures are of what they say."""

import pytest
from PIL import Image

from benchmarks.input import write_photographs
from tests.test_benchmarks import measured_by

from .pictures import encode, noise, write


def test_what_is_measured(tmp_path):
    """In a process of its own: it must run without the hook."""
    sizes = "--images 12 --size-px 64 48 --canvas-px 40 --batch 4 --steps 6 --step-ms 0 20"
    options = ["--device", "cpu", "--workers", "1", *sizes.split()]
    page, said = measured_by("benchmarks.input", tmp_path, *options)
    assert page["hardware"]["cores"] >= 1
    measured = {(f["what"], f["setting"]["step_ms"]): f["value"] for f in page["figures"]}
    for source in ("pack", "JPEG files"):
        assert measured[source, 20] <= 4 / 0.020
        assert measured[source, 0] > 0
        share = 100 * measured[source, 20] / measured["ready tensors", 20]
        assert measured[f"{source}: of ready tensors", 20] == pytest.approx(share)
        assert source in said
    assert page["figures"][0]["setting"]["images"] == 12
    assert 0 < page["figures"][0]["setting"]["file_kb"] < 20


def test_given_photographs_are_used_in_turn(tmp_path):
    for number in range(2):
        write(tmp_path / "given" / f"{number}.png", encode(noise(30, 30, number)))
    write_photographs(tmp_path / "made", 3, (40, 20), str(tmp_path / "given"))
    made = [path.read_bytes() for path in sorted((tmp_path / "made").iterdir())]
    assert made[0] == made[2] != made[1]
    with Image.open(tmp_path / "made" / "000001.jpg") as image:
        assert image.size == (40, 20)
