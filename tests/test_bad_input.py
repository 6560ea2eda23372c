"""Whatever a user gets wrong: one line that tells what to do, exit code 2, nothing written."""

import json
import re
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from croc.cli import main
from croc.config import CONFIG_FILE, write_config
from croc.recipes import RECIPES
from croc.segmentation.segmenter import save_segmenter
from tests.data.pictures import write, write_tar
from tests.eval.commands import segmentation_tree, words
from tests.eval.trees import gray_png, label_map, photograph
from tests.refusals import check_refusal
from tests.segmentation.heads import make_head
from tests.segmentation.test_fit import WEIGHTS, make_data
from tests.tiny import FLAGS
from tests.weights.conftest import make_file

TINY = "random:vit_tiny_patch16_224"
DEMO = {  # options of `croc pretrain demo`, and a fragment of the message
    "--cluster.kstart 5": "perhaps you meant --cluster.k-start",
    "--cluster.variant both": "'paper', 'released'",
    "--cluster.k-start 73": "more than the 72 tokens",
    "--cluster.k-max 9": "--cluster.k-max must be in 2",
    "--cluster.variant released --run.micro-batch 8": "released needs --run.micro-batch",
    "--model.patch-px 7": "--views.size-px 49",
    "--model.name vit_smal_patch16_224": "did you mean vit_small_patch16_224",
    "--model.name resnet50": "not a ViT",
    "--model.name vit_base_patch16_siglip_224": "CLS token",
    "--model.position-window 0.9 0.3": "--model.position-window must be in 0 … 1, the second",
    "--model.train-blocks 99": "--model.train-blocks 99: the network has",
    "--views.early-px 20 --views.early-epochs 1": "is not a whole number of 8 px patches",
    "--views.early-px 16": "--views.early-px and --views.early-epochs belong together",
    "--views.scale 0.5 0.1": "--views.scale must be in 0 … 1, the second",
    "--optim.batch 4096": "--optim.batch 1024",
    "--optim.batch 7 --run.devices 2": "a batch of 7 cannot be shared by 2 processes",
    "--optim.epochs 1": "--optim.warmup-epochs",
    "--optim.matrix-optimizer muon --run.strategy fsdp": "use --run.strategy ddp",
    "--optim.matrix-optimizer muon --optim.layer-decay 0.5": "--optim.layer-decay needs",
    "--anchor.weight 1": "--anchor.weight needs --init",
    "--loss.alpha nan": "--loss.alpha must be",
    "--run.cuda-graph True": "--run.cuda-graph True needs a single process",
    "--run.folder /proc/nowhere/run": "/proc/nowhere",
    "--run.folder thesis": "choose another --run.folder",
    "--init nowhere": "--init nowhere: no such run or file",
    "--init r18.pth": "r18 is a ConvNet",
    "--init list.pth": "contains a list, not named tensors",
    "--init object.pth": "Linear, not named tensors: save its state_dict()",
    f"--init {TINY}": "leave --init out",
    "--init timm:vit_tin": "timm has no model 'vit_tin'; did you mean gcvit_tiny",
    "--init timm:vit_tiny_patch16_224@nowhere.pth": "No such file",
    "--init timm:vit_tiny_patch16_224@r18.pth": "does not fit vit_tiny_patch16_224: Missing key",
    "--init run/config.json": "name the run's folder",
}
ROOTS = {  # values of --data.root
    "": "no images given: pass --data.root FOLDER",
    "nowhere": "nowhere does not exist",
    "x.zip": "x.zip is neither a folder nor a .tar shard",
    "empty": "no images in empty (searched at any depth for jpg jpeg png",
    "shards": "to read its shards pass --data.root shards/*.tar",
    "coco --data.subfolders train2017 unlabeled2017": "coco/unlabeled2017",
    "x.tar.gz": "if it is compressed, unpack it first (gzip -d x.tar.gz)",
    "text.tar": "text.tar is not a readable tar archive",
    "shards/x-000.tar": "no images in shards/x-000.tar",
    "shards/x-{000..001}.tar": "no such shard: shards/x-001.tar",
    "future": "future is damaged or of another version",
    "thesis": "1 images do not fill a batch of 24: pass --optim.batch 1",
}
INVALID: dict[str, Any] = {"views.scale": [0.5], "optim.epochs": 3.5, "optim.speed": 1}
PRETRAIN = {
    "fly": "unknown command 'fly'; available: demo",
    "pretrian demo": "unknown command 'pretrian'; did you mean pretrain?",
    "evaluate lineer": "unknown command 'evaluate lineer'; did you mean evaluate linear",
    "pretrain cats": "unknown recipe 'cats'; available: coco-vits16",
    "pretrain coco-vitsl16": "unknown recipe 'coco-vitsl16'; did you mean coco-vits16",
    "export": "croc: Missing from croc export: RUN --to STR; see croc export --help",
    "export a --tp b": "Unrecognized options: --tp",
    "pretrain missing/config.json": "config.json not found",
    "pretrain coco-vits16": "--data.root",
    "pretrain mae-coco-vits16 --data.root scenes --model.position-window 0.3 0.9": "not for MAE",
    "pretrain mae-coco-vits16 --data.root scenes --decoder.mask-ratio 0.999": "patches visible",
    "pretrain binary.json": "not a CrOC run configuration",
    "pretrain views.scale.json": "views.scale",
    "pretrain optim.epochs.json": "optim.epochs",
    "pretrain optim.speed.json": "unknown: optim.speed",
    "data pack no/such/folder --to packed": "no/such/folder",
    "data pack thesis --to binary.json --workers 0": "exists already",
}
if not torch.cuda.is_available():
    DEMO |= {
        "--run.accelerator cuda": "--run.accelerator cuda",
        "--run.precision bfloat16": "for GPUs",
    }

EVALUATE = {  # protocol, data and more options
    "linear davis16:x": "davis16:x does not support linear",
    "linear voc13:x": "no dataset is called voc13:x: pass one of voc12:PATH",
    "linear voc12:nowhere": "nowhere is missing: see ",
    "linear scenes:0": "is not a number of scenes",
    "linear scenes:4 --weights nowhere": "no such run or file",
    "linear scenes:4 --weights random:mixer_b16_224": "gives no feature map",
    "linear scenes:4 --linear.blocks 9": "has 2 blocks, not 9",
    "linear scenes:4 --linear.lrs 0": "--linear.lrs must be",
    "linear scenes:4 --linear.epochs 2": "pass exactly one of --linear.epochs",
    "linear scenes:4 --workers -1": "--workers must be at least 0",
    "linear scenes:4 --hold-out 1": "--hold-out must be at least 0",
    "linear scenes:4 --hold-out 0.01": "4 training images leaves none to score",
    "linear davis17:x --hold-out 0.5": "davis17:x has no training split",
    "linear scenes:4 --to binary.json/x": "Not a directory",
    "linear voc12:x --linear.resize keep-ratio": "--linear.resize keep-ratio",
    "linear folder:trees/label --workers 1": "has the label 7",
    "linear folder:trees/broken --workers 1": "labels/train/1.png",
    "linear folder:trees/webp": "neither JPEG nor PNG",
    "linear folder:trees/unlabeled": "labels/val/9.png is missing",
    "linear folder:trees/latin": "is not UTF-8 text",
    "linear folder:trees/twice": "has a class twice",
    "linear folder:trees/many": "more than 255 classes",
    "linear folder:trees/both": "has 0.jpg and 0.png",
    "linear folder:trees/void-train": "no training pixel is labeled",
    "linear folder:trees/void-val": "no scored pixel is labeled",
    "incontext folder:trees/void-train": "no labeled patch for the memory",
    "within folder:trees/void-val": "no scored image has two labeled classes",
    "kmeans scenes:4 --kmeans.clusters 5": "fewer than the 13 classes",
    "fewlabel scenes:4 --fewlabel.images 1 half": "pass counts such as 20",
    "fewlabel davis17:x": "davis17:x does not support fewlabel",
    "video scenes:1 --masks thesis": "exists and is not empty",
    f"table scenes:4 --weights {TINY} B=random:vit_smal": "B: --weights: timm has no",
    "table scenes:4 --weights A=x A=y": "give them LABEL=WEIGHTS",
    "table scenes:4 --weights =x": "give LABEL=WEIGHTS",
    "table scenes:4 --protocols": "none can be scored on scenes:4",
    "table x --protocols linear --data scenes:4 davis16:x": "none can be scored on davis16:x",
    f"curve scenes:4 --weights {TINY}": "not the folder of a run with checkpoints",
    "curve scenes:4 --weights a=run a=run/": "give them LABEL=RUN",
}
VOID = gray_png(label_map(255))
TREES: dict[str, dict[str, bytes]] = {  # what is wrong in folder:trees/NAME
    "label": {"labels_val_2.png": gray_png(label_map(0, 7))},
    "broken": {"labels_train_1.png": b"no image"},
    "webp": {"images_val_0.jpg": b"RIFF    WEBPVP8 "},
    "unlabeled": {"images_val_9.jpg": photograph(9)},
    "latin": {"classes.txt": "Straße\n".encode("latin-1")},
    "twice": {"classes.txt": b"a\nb\na\n"},
    "many": {"classes.txt": b"%d\n" * 256 % (*range(256),)},
    "both": {"images/val/0.png": photograph(9)},
    "void-train": {f"labels_train_{number}.png": VOID for number in range(4)},
    "void-val": {f"labels_val_{number}.png": VOID for number in range(4)},
}

EXPORT = {  # options of `croc export`
    "nowhere --to timm --folder a/b": "RUN nowhere: no such run or file",
    f"{TINY} --to onnx": "is not a run",
    "other.safetensors --to timm": "contains no ViT or ResNet",
    "eva.safetensors --to transformers": "eva02_tiny_patch14_224 has no equivalent in transformers",
    "run --to tim": "pass timm, transformers, onnx, or a file",
    "run --to a.safetensors --name a": "--name only apply to",
    "run --to onnx --dtype bfloat16": "written in float32",
    "run --to timm --name a/b": "--name 'a/b': pass a name",
    "run --to timm --scores nowhere": "nowhere",
    "run --to timm --scores results.jsonl": "has no scores of these weights",
    "run --to other.safetensors": "other.safetensors already exists and will not be overwritten",
    "run --to onnx --folder link": "link already exists",
    "run --to timm --name taken": "taken-timm already exists",
}
SHOW = {
    "clusters photo.png --run run --heads 3": "--heads 3: the network has heads 0 to 2",
    "clusters photo.png --run run --image-px 64": "--image-px needs --whole",
    "clusters photo.png --run run --whole --image-px 8": "more than the 1 tokens",
    "clusters no.jpg --run run": "no.jpg cannot be read as an image: No such file",
    "clusters photo.png": "--run RUN, or --weights NAME",
    "clusters photo.png --run run --step 1": "no checkpoint of step 1, only of 0 (untrained), 2, 3",
    "clusters photo.png --weights x --step 3": "--step needs --run",
    "clusters photo.png --weights no-such": "pass a run folder, a file written",
    "clusters photo.png --run mae": "was not trained by CrOC",
    "merging photo.png photo.png --run run": "takes one image",
    "features photo.png --run run --patch 60 3": "60, 3 is outside the image",
    "features photo.png --run run --to picture": "pass a file name ending in .png",
    "features photo.png --run run --to no/x.png": "no/x.png",
    "report": "pass at least one run folder",
    "report foreign": "foreign/config.json is not a CrOC run configuration",
    "report run --to no/page.html": "no/page.html",
    "report run --scores run/metrics.jsonl": "was not written by croc evaluate",
    "weights cut.safetensors": "cut.safetensors",
    "weights empty.pth": "empty.pth",
    "weights empty.safetensors": "empty.safetensors",
    "weights .": "has no run",
}

LABEL = f"app label --weights {TINY} --port 0"
SWEEP = f"""sweep demo {shlex.join(FLAGS)} --workers 0 --linear.image-px 32 --linear.steps 5
--sweep.to sweep --sweep.data scenes:4 --sweep.protocols linear"""
VARY = "--sweep.vary cluster.position-weight --sweep.values"
LAB = {
    "app run run run": "pass one or two networks",
    "app --weights nothing --port 0": "--weights nothing",
    "app run --port IN-USE": "address already in use; choose another with --port",
    "app run --host 0.0.0.0": "--host",
    f"{LABEL} empty": "no images in",
    f"{LABEL} none": "none does not exist: pass folders or image files",
    f"{LABEL} . --image-px 100": "not a multiple of",
    "bench demo --bench.steps 0": "--bench.steps must be at least 1",
    "bench demo --run.devices 2": "one device",
    "bench demo --bench.to there": "choose another --bench.to",
    "bench dino-demo": "only supports recipes of CrOC",
    SWEEP: "pass either --sweep.vary",
    f"{SWEEP} --sweep.vary cluster.tokns --sweep.values keys": "meant --cluster.tokens",
    f"{SWEEP} --sweep.vary run.seed --sweep.values 1": "leave out --run.seed",
    f"{SWEEP} {VARY} 1 --optim.batch 4096": "--optim.batch 24",
    f"{SWEEP} --sweep.settings a": "'NAME=OPTIONS'",
    f'{SWEEP} --sweep.settings "a=\'"': "No closing quotation",
    f"{SWEEP} --sweep.settings 'K 6=' 'K-6=--loss.alpha 2'": "would share a folder",
    f"{SWEEP} --sweep.settings a=@dino": "unknown recipe 'dino'",
}
FIT = f"fit --weights {WEIGHTS} --linear.image-px 64 --to new --workers 0 --data"
PREDICT = "predict --workers 0 --to new"
SEGMENT = {
    f"{FIT} folder:good --to taken.onnx": "already exists and will not be overwritten",
    f"{FIT} folder:good --incontext.memory 9": "--incontext.memory",
    f"{FIT} folder:good --weights colors": "colors cannot be stored",
    f"{PREDICT} other photos --to masks": "were made with a different head",
    f"{PREDICT} head photos/sub --to masks": "are for different images",
    f"{PREDICT} head empty": "no images in",
    f"{PREDICT} head text.tar": "is not an image file",
    f"{PREDICT} head nothing": "does not exist",
    f"{PREDICT} head photos --to odd": "settings.json cannot be read",
    f"{PREDICT} head photos --tile-px 40": "--tile-px: tiles of 40 px",
    f"{PREDICT} photos photos": "has no head",
    f"discover broken.jpg --weights {TINY} --to new --classes 2 --workers 0": "can be decoded",
    "export memory --to x.onnx": "is an in-context head, which cannot be exported",
    "export head --to x.engine": "pass a file that ends in .onnx or .pt2",
}


def evaluation(command: str) -> str:
    protocol, data, *more = command.split()
    return shlex.join(words(protocol, "run", data, "out", *more))


BAD = PRETRAIN | LAB
BAD |= {f"pretrain demo {options}": fragment for options, fragment in DEMO.items()}
BAD |= {f"pretrain demo --data.root {root}": fragment for root, fragment in ROOTS.items()}
BAD |= {evaluation(command): fragment for command, fragment in EVALUATE.items()}
BAD |= {f"export {options}": fragment for options, fragment in EXPORT.items()}
BAD |= {f"show {options}": fragment for options, fragment in SHOW.items()}
BAD |= {f"segment {options}": fragment for options, fragment in SEGMENT.items()}
FILES = {
    "binary.json": b"\xff\x00",
    "broken.jpg": b"\xff\xd8\xff",
    "empty.pth": b"",
    "empty.safetensors": b"",
    "foreign/config.json": b'{"architectures": ["ViTModel"]}',
    "future/index.npy": b"",
    "future/pack.json": b'{"format": 2, "canvas_px": 4, "count": 0}',
    "odd/settings.json": b"{",
    "results.jsonl": b'{"weights_hash": "0000000000000000"}\n[1]\n',
    "taken.onnx": b"",
    "text.tar": b"not a tar" * 500,
    "there/bench.json": b"{}",
    "x.zip": b"",
    "x.tar.gz": b"\x1f\x8b",
}


@pytest.fixture(scope="module")
def place(run: Path, mae_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the table names."""
    place = tmp_path_factory.mktemp("place")
    shutil.copytree(run, place / "run")
    shutil.copytree(mae_run, place / "mae")
    for name, data in FILES.items():
        write(place / name, data)
    for name in ("empty", "thesis", "coco/train2017", "photos/sub", "taken-timm", "out/pictures"):
        (place / name).mkdir(parents=True)
    pictures = ("thesis/figure", "coco/train2017/figure", "photo", "photos/a", "photos/sub/b")
    for name in pictures:
        Image.new("RGB", (60, 40)).save(place / f"{name}.png")
    (place / "link").symlink_to("nowhere")
    write_tar(write(place / "shards/x-000.tar", b""), {"a.txt": b"a"})
    for path, value in INVALID.items():
        write_config(place, RECIPES["demo"](), "demo")
        section, field = path.split(".")
        config = json.loads((place / CONFIG_FILE).read_text())
        config[section][field] = value
        (place / f"{path}.json").write_text(json.dumps(config))
    (place / CONFIG_FILE).unlink()
    for name, changes in TREES.items():
        segmentation_tree(place / "trees" / name, **changes)
    make_data(place / "good", 3)
    torch.save(timm.create_model("resnet18").state_dict(), place / "r18.pth")
    torch.save([1, 2], place / "list.pth")
    torch.save(torch.nn.Linear(2, 2), place / "object.pth")
    save_file({"a": torch.zeros(1)}, place / "other.safetensors")
    whole = make_file(place / "eva.safetensors", "eva02_tiny_patch14_224").read_bytes()
    (place / "cut.safetensors").write_bytes(whole[:5000])
    for name, kind, classes in (("head", "linear", 3), ("other", "linear", 4)):
        save_segmenter(make_head(TINY, kind, classes), place / name, {})
    save_segmenter(make_head("random:resnet18", "incontext"), place / "memory", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(shlex.split("segment predict head photos --to masks --workers 0")) == 0
    return place


@pytest.mark.parametrize(("command", "fragment"), BAD.items(), ids=BAD.values())
def test_one_line_and_nothing_written(
    command: str, fragment: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(place)
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = re.sub("IN-USE", str(other.getsockname()[1]), command)
        check_refusal(capsys, shlex.split(command), fragment)
