"""Each folder, loaded where there is no croc, gives what `croc.load_backbone` gives."""

import json
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor

import croc
from croc.cli import main
from croc.eval.features import fingerprint
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.export.command import KINDS
from tests.export.foreign import (
    Job,
    card_code,
    describe_here,
    deviation,
    normalise,
    run_foreign,
    work_abroad,
)
from tests.export.sources import make_file

Found = dict[str, dict[str, Tensor]]
DRAWS = torch.Generator().manual_seed(0)
SIZES = {
    name: torch.randn(*shape, generator=DRAWS)
    for name, shape in {
        "native": (2, 3, 32, 32),
        "wide": (1, 3, 24, 48),
        "tall and larger": (3, 3, 72, 40),
        "square and smaller": (2, 3, 16, 16),
        "square and larger": (1, 3, 64, 64),
        "one patch": (1, 3, 8, 8),
    }.items()
}
BY_14 = {
    "native": torch.randn(2, 3, 56, 56, generator=DRAWS),
    "other": torch.randn(1, 3, 42, 84, generator=DRAWS),
}
TOKENS = """
import torch
def describe(images):
    with torch.inference_mode():
        tokens = vit.eval().forward_features(torch.from_numpy(images))
    return tokens[:, 0], tokens[:, vit.num_prefix_tokens:]
"""
LOCAL_DIR = """
import timm
vit = timm.create_model("local-dir:{}", pretrained=True)
"""
CHECKPOINT_PATH = """
import timm
vit = timm.create_model(
    "vit_tiny_patch16_224", checkpoint_path="tiny-timm/model.safetensors", num_classes=0,
    dynamic_img_size=True, img_size=32, patch_size=8, depth=2,
)
"""
TORCHHUB = """
import torch
vit = torch.hub.load("tiny-torchhub", "backbone", source="local")
"""
SAFETENSORS = """
import json, timm
from safetensors.torch import load_file
config = json.load(open("tiny-safetensors/config.json"))
vit = timm.create_model(config["architecture"], **config["model_args"])
vit.load_state_dict(load_file("tiny-safetensors/model.safetensors"))
"""
ONNX = """
import onnxruntime
session = onnxruntime.InferenceSession("{}/model.onnx")
def describe(images):
    return session.run(["cls", "patches"], {{"images": images}})
"""
TRANSFORMERS = """
import torch
from transformers import AutoModel, ViTModel
vit, same = (
    kind.from_pretrained("{}", add_pooling_layer=False).eval() for kind in (ViTModel, AutoModel)
)
assert type(same) is ViTModel
def describe(images):
    native = images.shape[2] == images.shape[3] == vit.config.image_size
    with torch.inference_mode():
        tokens, again = (
            each(torch.from_numpy(images), interpolate_pos_encoding=not native).last_hidden_state
            for each in (vit, same)
        )
    assert (tokens == again).all()
    return tokens[:, 0], tokens[:, 1:]
"""
TIMM_IMAGES = (
    LOCAL_DIR.format("tiny-timm")
    + """
known = timm.data.resolve_model_data_config(vit)
assert known["interpolation"] == "bicubic"
mean, std, size = known["mean"], known["std"], known["input_size"]
kept = ("mean", "std", "size")
"""
)
PROCESSOR = """
import numpy as np
from PIL import Image
from transformers import AutoImageProcessor
processor = AutoImageProcessor.from_pretrained("tiny-transformers")
picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
image, filter = Image.fromarray(picture), int(processor.resample)
pixels = processor(image, return_tensors="np")["pixel_values"]
larger = processor(image.resize((90, 60)), return_tensors="np")["pixel_values"]
kept = ("picture", "pixels", "larger", "filter")
"""
PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
TINY = '"vit_tiny_patch16_224", patch_size=8, depth=2, img_size=32'


@pytest.fixture(scope="module")
def place(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-KIND of every kind, made by the command line; two of unusual networks; one rounded."""
    place = tmp_path_factory.mktemp("folders")
    command = [sys.executable, "-m", "croc", "export", str(run), "--to", "onnx"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "tiny-onnx\n", "")
    registers = make_file(place / "r.safetensors", "vit_small_patch14_reg4_dinov2", 14, 56)
    biasless = make_file(place / "b.safetensors", "vit_base_patch16_224_miil")
    rest = [[str(run), "--to", kind] for kind in KINDS if kind != "onnx"]
    rounded = [str(run), "--to", "timm", "--dtype", "bfloat16", "--name", "rounded"]
    unusual = [
        *([str(registers), "--to", kind] for kind in ("timm", "onnx")),
        [str(biasless), "--to", "transformers"],
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for arguments in (*rest, rounded, *unusual):
            assert main(["export", *arguments]) == 0
    made = {path.name for path in place.iterdir() if path.is_dir()}
    also = {"rounded-timm", "r-timm", "r-onnx", "b-transformers"}
    assert made == {f"tiny-{kind}" for kind in KINDS} | also
    return place


@pytest.fixture(scope="module")
def by_timm(place: Path) -> Found:
    jobs = {
        "local-dir": Job(LOCAL_DIR.format("tiny-timm") + TOKENS, SIZES),
        "checkpoint_path": Job(CHECKPOINT_PATH + TOKENS, SIZES),
        "torchhub": Job(TORCHHUB + TOKENS, SIZES),
        "safetensors": Job(SAFETENSORS + TOKENS, SIZES),
        "rounded": Job(LOCAL_DIR.format("rounded-timm") + TOKENS, SIZES),
        "registers": Job(LOCAL_DIR.format("r-timm") + TOKENS, BY_14),
        "images": Job(TIMM_IMAGES),
    }
    kinds = ("timm", "torchhub", "safetensors")
    jobs |= {f"{kind}'s card": card(place, kind) for kind in kinds}
    return work_abroad(jobs | docs("import timm\n", "torch.hub.load"), place)


@pytest.fixture(scope="module")
def by_transformers(place: Path) -> Found:
    jobs = {
        "tiny": Job(TRANSFORMERS.format("tiny-transformers"), SIZES),
        "no qkv bias": Job(TRANSFORMERS.format("b-transformers"), {"native": SIZES["native"]}),
        "images": Job(PROCESSOR),
        "transformers's card": card(place, "transformers"),
    }
    return work_abroad(jobs | docs("from transformers"), place)


@pytest.fixture(scope="module")
def by_onnxruntime(place: Path) -> Found:
    jobs = {
        "tiny": Job(ONNX.format("tiny-onnx"), SIZES),
        "registers": Job(ONNX.format("r-onnx"), BY_14),
        "onnx's card": card(place, "onnx"),
    }
    return work_abroad(jobs | docs("onnxruntime"), place)


def docs(*signs: str) -> dict[str, Job]:
    """The pieces of Python in docs/export.md that hold one of the signs, on one image."""
    before = "import torch\nimages = torch.linspace(-2, 2, 3072).view(1, 3, 32, 32)\n"
    found = [
        before + code.replace("mine-", "tiny-").replace('"vit_small_patch16_224"', TINY)
        for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        if any(sign in code for sign in signs)
    ]
    kept = "tokens = torch.as_tensor(tokens).detach()\nkept = ('images', 'tokens')\n"
    return {f"docs {number}": Job(code + kept) for number, code in enumerate(found)}


def card(place: Path, kind: str) -> Job:
    return Job(card_code(place / f"tiny-{kind}"))


def test_croc_cannot_be_imported_there(tmp_path: Path):
    for code in ("import croc", "from croc.weights.export import export"):
        done = run_foreign(code, tmp_path)
        assert done.returncode == 1
        assert "croc cannot be had here" in done.stderr


@pytest.mark.parametrize("way", ["local-dir", "checkpoint_path", "torchhub", "safetensors"])
def test_timm_gives_the_same(way: str, run: Path, by_timm: Found):
    assert max(deviation(by_timm[way], str(run), SIZES).values()) < 1e-4


def test_onnx_gives_the_same(run: Path, place: Path, by_onnxruntime: Found):
    assert max(deviation(by_onnxruntime["tiny"], str(run), SIZES).values()) < 1e-4


def test_transformers_gives_the_same(run: Path, place: Path, by_transformers: Found):
    """At the training's size; elsewhere it resizes the positions by another filter."""
    found = deviation(by_transformers["tiny"], str(run), SIZES)
    assert found.pop("native") < 1e-4
    assert 1e-4 < max(found.values()) < 1
    native, file = {"native": SIZES["native"]}, str(place / "b.safetensors")
    assert deviation(by_transformers["no qkv bias"], file, native)["native"] < 1e-4


def test_registers(place: Path, by_timm: Found, by_onnxruntime: Found):
    for found in (by_timm, by_onnxruntime):
        unlike = deviation(found["registers"], str(place / "r.safetensors"), BY_14)
        assert max(unlike.values()) < 1e-4


def test_rounded_numbers(run: Path, place: Path, by_timm: Found):
    file = str(place / "rounded-timm" / "model.safetensors")
    exact = croc.load_backbone(str(run))
    assert fingerprint(croc.load_backbone(file)) != fingerprint(exact)
    assert fingerprint(croc.load_backbone(file)) == fingerprint(exact.bfloat16().float())
    assert max(deviation(by_timm["rounded"], file, SIZES).values()) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_cards_own_code(kind: str, run: Path, place: Path, request: pytest.FixtureRequest):
    runs_in = {"transformers": "by_transformers", "onnx": "by_onnxruntime"}.get(kind, "by_timm")
    found = request.getfixturevalue(runs_in)[f"{kind}'s card"]
    expected = describe_here(str(run), normalise(found["images"]))
    for name, value in zip(("cls", "patches"), expected):
        assert torch.allclose(found[name], value, atol=1e-4)
    assert max(map(len, card_code(place / f"tiny-{kind}").splitlines())) <= 100


def test_the_pages_code(run: Path, by_timm: Found, by_transformers: Found, by_onnxruntime: Found):
    found = [
        kept
        for jobs in (by_timm, by_transformers, by_onnxruntime)
        for name, kept in jobs.items()
        if name.startswith("docs")
    ]
    assert len(found) == PAGE.count("```python") == 6
    for kept in found:
        _, patches = describe_here(str(run), kept["images"])
        assert torch.allclose(kept["tokens"][:, -16:], patches, atol=1e-4)


def test_they_know_the_images(by_timm: Found, by_transformers: Found):
    """timm their mean, deviation and size; transformers makes the pixels that training saw."""
    known = by_timm["images"]
    assert torch.equal(known["mean"], torch.tensor(IMAGENET_MEAN, dtype=torch.float64))
    assert torch.equal(known["std"], torch.tensor(IMAGENET_STD, dtype=torch.float64))
    assert known["size"].tolist() == [3, 32, 32]
    found = by_transformers["images"]
    expected = normalise(found["picture"].permute(2, 0, 1) / 255)
    assert torch.allclose(found["pixels"][0], expected, atol=1e-5)
    assert (found["larger"].shape, found["filter"].item()) == ((1, 3, 32, 32), 3)


def test_the_graph(place: Path):
    path = place / "tiny-onnx" / "model.onnx"
    onnx.checker.check_model(path, full_check=True)
    assert b".py" not in path.read_bytes(), "it tells where the Python of this machine lies"
    model = onnx.load(path)
    assert [(used.domain, used.version) for used in model.opset_import] == [("", 18)]
    graph = model.graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {
        "images": ["batch", 3, "8*rows", "8*columns"],
        "cls": ["batch", 192],
        "patches": ["batch", "rows*columns", 192],
    }
    config = json.loads((place / "tiny-onnx" / "config.json").read_text())
    assert (config["input"]["mean"], config["patch_px"]) == (list(IMAGENET_MEAN), 8)
