"""Each folder, loaded where croc cannot be imported, gives the features of `croc.load_backbone`.

One process executes all jobs: the code in a folder's card or in the docs, which leaves variables,
followed by a definition of describe(images) -> cls, patches.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from timm.layers.mlp import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

import croc
from croc.cli import main
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.export import WRITERS
from croc.weights.transformers import convert
from tests.weights.conftest import make_file

ROOT = Path(__file__).parents[2]
Results = dict[str, dict[str, Tensor]]
FOREIGN = """
import json, sys
import numpy as np

class NoCroc:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "croc":
            raise ImportError("there is no croc")

sys.meta_path.insert(0, NoCroc())
images, results = dict(np.load("images.npz")), {}
for job, (code, sizes) in json.load(open("jobs.json")).items():
    space = {}
    exec(code, space)
    names = space.get("results", ("images", "cls", "patches"))
    results |= {f"{job}|{name}": np.asarray(space[name]) for name in names if name in space}
    for size in sizes:
        cls, patches = space["describe"](images[size])
        results[f"{job}|{size} cls"] = np.asarray(cls)
        results[f"{job}|{size} patches"] = np.asarray(patches)
np.savez("results.npz", **results)
"""
DRAWS = torch.Generator().manual_seed(0)
IMAGES = {
    name: torch.randn(*shape, generator=DRAWS)
    for name, shape in {
        "native": (2, 3, 32, 32),
        "tall and larger": (3, 3, 72, 40),
        "square and smaller": (2, 3, 16, 16),
        "one patch": (1, 3, 8, 8),
        "native of 14 px": (2, 3, 56, 56),
        "other of 14 px": (1, 3, 42, 84),
    }.items()
}
SIZES = list(IMAGES)[:4]
NETWORK_SIZES = {"registers": list(IMAGES)[4:], "biasless": SIZES[:1]}
FOLDERS = {
    **{f"tiny-{kind}": ("RUN", SIZES) for kind in WRITERS},
    "rounded-timm": ("rounded-timm/model.safetensors", SIZES),
    **{
        f"{name}-{kind}": (f"{name}.safetensors", NETWORK_SIZES.get(name, SIZES))
        for kind, names in {
            "timm": ("registers", "dinov3", "eva02"),
            "transformers": ("biasless", "dinov2", "registers", "dinov3", "plus"),
            "onnx": ("dinov3",),
            "checkpoint": ("dinov3",),
        }.items()
        for name in names
    },
    "repository": ("repository/weights/small.safetensors", SIZES),
}
"""The weights that each must agree with, and the images that it is compared on."""
ROUNDED = {"timm": torch.float32, "transformers": torch.bfloat16}
"""The dtype in which each library loads weights that are stored in bfloat16."""
NETWORKS = {
    "biasless": ("vit_base_patch16_224_miil", 16, 32),
    "dinov2": ("vit_small_patch14_dinov2", 8, 32),
    "registers": ("vit_small_patch14_reg4_dinov2", 14, 56),
    "dinov3": ("vit_small_patch16_dinov3", 8, 32),
    "plus": ("vit_small_plus_patch16_dinov3_qkvb", 8, 32),
    "eva02": ("eva02_tiny_patch14_224", 8, 32),
}
"""timm's name, patches and images of the random networks."""
OTHER_SIZES = {"tiny": 1.0, "dinov2": 1.0}
"""Of transformers, which resizes learned positions by another filter, except for registers."""
CHECKPOINT = """
import timm
import torch
vit = timm.create_model(
    NAME, checkpoint_path=FOLDER + "/model.safetensors", patch_size=PATCH, img_size=SIDE, depth=1,
    num_classes=0, global_pool="token", dynamic_img_size=True,
)
"""
TOKENS = """
def describe(images):
    with torch.inference_mode():
        tokens = vit.eval().forward_features(torch.from_numpy(images))
    return tokens[:, 0], tokens[:, vit.num_prefix_tokens:]
"""
DESCRIBE = {
    "onnx": """
def describe(images):
    return session.run(["cls", "patches"], {"images": images})
""",
    "transformers": """
def describe(images):
    other = images.shape[2] != vit.config.image_size or images.shape[3] != vit.config.image_size
    options = {"interpolate_pos_encoding": True} if other and vit.config.model_type == "vit" else {}
    with torch.inference_mode():
        tokens = vit(torch.from_numpy(images), **options).last_hidden_state
    return tokens[:, 0], tokens[:, 1 + getattr(vit.config, "num_register_tokens", 0):]
""",
}
HUB = """
import torch
vit = torch.hub.load("repository", "backbone", source="local", name="small")
try:
    torch.hub.load("repository", "backbone", source="local", name="smal")
except ValueError as error:
    assert str(error) == "there is no smal.safetensors here; names: small", error
else:
    raise AssertionError("it found smal")
"""
PREPARATION = """
import numpy as np
import timm
from PIL import Image
from transformers import AutoImageProcessor
known = timm.data.resolve_model_data_config(timm.create_model("local-dir:tiny-timm"))
assert known["interpolation"] == "bicubic"
mean, std, size = known["mean"], known["std"], known["input_size"]
processor = AutoImageProcessor.from_pretrained("tiny-transformers")
picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
image, filter = Image.fromarray(picture), int(processor.resample)
pixels = processor(image, return_tensors="np")["pixel_values"]
larger = processor(image.resize((90, 60)), return_tensors="np")["pixel_values"]
results = ("mean", "std", "size", "picture", "pixels", "larger", "filter")
"""
DOCS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "weights.md").read_text(), re.DOTALL)
DOCS = [code for code in DOCS if "mine-" in code]


def card_code(folder: Path) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert max(map(len, code.splitlines())) <= 100
    return code


@pytest.fixture(scope="module")
def place(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-KIND of every kind, one with rounded weights, and unusual networks."""
    place = tmp_path_factory.mktemp("folders")
    command = [sys.executable, "-m", "croc", "export", str(run), "--to", "onnx"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "tiny-onnx\n", "")
    for name, network in NETWORKS.items():
        make_file(place / f"{name}.safetensors", *network)
    (place / "repository").mkdir()
    shutil.copy(ROOT / "hubconf.py", place / "repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for arguments in (
            *(f"{run} --to {kind}" for kind in WRITERS if kind != "onnx"),
            *(f"{run} --to {kind} --dtype bfloat16 --name rounded" for kind in ROUNDED),
            f"{run} --to repository/weights/small.safetensors",
            *(
                f"{name}.safetensors --to {kind}"
                for name, _, kind in (folder.partition("-") for folder in FOLDERS)
                if name in NETWORKS and kind in WRITERS
            ),
        ):
            assert main(["export", *arguments.split()]) == 0
    return place


@pytest.fixture(scope="module")
def results(place: Path) -> Results:
    """By job, as a process without croc computes them."""
    jobs: dict[str, tuple[str, list[str]]] = {"preparation": (PREPARATION, [])}
    for folder, (_, sizes) in FOLDERS.items():
        name, _, kind = folder.partition("-")
        code = HUB if folder == "repository" else ""
        if kind == "checkpoint":
            model, patch_px, side_px = NETWORKS[name]
            values = {"NAME": model, "FOLDER": f"{name}-timm", "PATCH": patch_px, "SIDE": side_px}
            code = "".join(f"{key} = {value!r}\n" for key, value in values.items()) + CHECKPOINT
        jobs[folder] = (code or card_code(place / folder)) + DESCRIBE.get(kind, TOKENS), sizes
    for number, code in enumerate(DOCS):
        code = code.replace("mine-", "tiny-")
        before = "import torch\nimages = torch.linspace(-2, 2, 3072).view(1, 3, 32, 32)\n"
        after = "tokens = torch.as_tensor(tokens).detach()\nresults = ('images', 'tokens')\n"
        jobs[f"docs {number}"] = before + code + after, []
    np.savez(place / "images.npz", **{name: value.numpy() for name, value in IMAGES.items()})
    (place / "jobs.json").write_text(json.dumps(jobs))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-c", FOREIGN]
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    results: Results = {job: {} for job in jobs}
    with np.load(place / "results.npz") as arrays:
        for name, value in arrays.items():
            job, _, name = name.partition("|")
            results[job][name] = torch.from_numpy(value)
    return results


@torch.no_grad()
def describe_here(weights: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """CLS and patches as `croc.load_backbone` gives them."""
    backbone = croc.load_backbone(weights)
    tokens = backbone.vit.forward_features(images)
    patches = backbone.features(images).flatten(2).transpose(1, 2)
    assert torch.equal(tokens[:, backbone.vit.num_prefix_tokens :], patches)
    return tokens[:, 0], patches


def normalize(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (images - mean) / std


@pytest.mark.parametrize("folder", FOLDERS)
def test_tokens_are_the_same(folder: str, run: Path, place: Path, results: Results):
    weights, sizes = FOLDERS[folder]
    weights = str(run) if weights == "RUN" else str(place / weights)
    for size in sizes:
        name, _, kind = folder.partition("-")
        is_exact = kind != "transformers" or size == "native" or name not in OTHER_SIZES
        for part, expected in zip(("cls", "patches"), describe_here(weights, IMAGES[size])):
            value = results[folder][f"{size} {part}"]
            assert value.shape == expected.shape
            bound = 1e-4 if is_exact else OTHER_SIZES[name]
            assert (value - expected).abs().max() < bound, (size, part)
    if "images" in results[folder]:  # those in the card's code
        expected = describe_here(weights, normalize(results[folder]["images"]))
        for name, value in zip(("cls", "patches"), expected):
            assert torch.allclose(results[folder][name], value, atol=1e-4)


@pytest.mark.parametrize("registers", [0, 4])
def test_gated_networks_of_transformers(registers: int, tmp_path: Path):
    """timm's only one, ViT-g, is too large for a test."""
    vit = VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=64,
        depth=2,
        num_heads=2,
        mlp_ratio=2 * 176 / 64,
        mlp_layer=SwiGLUPacked,
        act_layer=torch.nn.SiLU,
        init_values=1.0,
        reg_tokens=registers,
        no_embed_class=registers > 0,
        dynamic_img_size=True,
        num_classes=0,
    ).eval()
    weights, config = convert(vit, vit.state_dict(), "mine")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    model: Any = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert config["use_swiglu_ffn"]
    assert config["architectures"] == [type(model).__name__]
    with torch.no_grad():
        tokens = model(IMAGES["native"]).last_hidden_state
        assert torch.allclose(tokens, vit.forward_features(IMAGES["native"]), atol=1e-5)


@pytest.mark.parametrize("kind", ROUNDED)
def test_bfloat16(kind: str, place: Path, monkeypatch: pytest.MonkeyPatch):
    """In the file, and as the card's code loads it."""
    monkeypatch.chdir(place)
    weights = load_file(f"rounded-{kind}/model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    code: dict[str, Any] = {}
    exec(card_code(place / f"rounded-{kind}"), code)
    assert {value.dtype for value in code["vit"].state_dict().values()} == {ROUNDED[kind]}
    _, patches = describe_here("rounded-timm/model.safetensors", normalize(code["images"]))
    assert (code["patches"] - patches).abs().max() < 0.1


def test_the_code_in_the_docs(run: Path, results: Results):
    assert len(DOCS) == len(WRITERS)
    for number in range(len(DOCS)):
        result = results[f"docs {number}"]
        _, patches = describe_here(str(run), result["images"])
        assert torch.allclose(result["tokens"][:, -16:], patches, atol=1e-4)


def test_images_are_prepared_as_in_training(results: Results):
    known = results["preparation"]
    assert torch.equal(known["mean"], torch.tensor(IMAGENET_MEAN, dtype=torch.float64))
    assert torch.equal(known["std"], torch.tensor(IMAGENET_STD, dtype=torch.float64))
    assert known["size"].tolist() == [3, 32, 32]
    expected = normalize(known["picture"].permute(2, 0, 1) / 255)
    assert torch.allclose(known["pixels"][0], expected, atol=1e-5)
    assert (known["larger"].shape, known["filter"].item()) == ((1, 3, 32, 32), 3)


def test_the_onnx_graph(place: Path):
    path = place / "tiny-onnx" / "model.onnx"
    onnx.checker.check_model(path, full_check=True)
    assert b".py" not in path.read_bytes(), "it contains paths of this machine"
    model = onnx.load(path)
    assert [(used.domain, used.version) for used in model.opset_import] == [("", 18)]
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {
        "images": ["batch", 3, "8*rows", "8*columns"],
        "cls": ["batch", 192],
        "patches": ["batch", "rows*columns", 192],
    }
