"""The Python in a folder's card, which loads it and describes images."""

import json

from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.page import WeightsPage

IMAGES = """images = torch.rand(1, 3, {px}, {px})  # yours: RGB in 0 … 1
mean = torch.tensor({mean}).view(3, 1, 1)
std = torch.tensor({std}).view(3, 1, 1)
"""
TOKENS = """with torch.inference_mode():
    tokens = vit.forward_features((images - mean) / std)  # any multiple of {patch} px
cls, patches = tokens[:, 0], tokens[:, vit.num_prefix_tokens :]
"""
TIMM = f"""
import timm
import torch

vit = timm.create_model({{local_folder}}, pretrained=True).eval()
{IMAGES}{TOKENS}"""
TORCHHUB = f"""
import torch

vit = torch.hub.load({{folder}}, "backbone", source="local")
{IMAGES}{TOKENS}"""
SAFETENSORS = f"""
import json

import timm
import torch
from safetensors.torch import load_file

folder = {{folder}}
with open(folder + "/config.json") as file:
    config = json.load(file)
vit = timm.create_model(config["architecture"], **config["model_args"]).eval()
vit.load_state_dict(load_file(folder + "/model.safetensors"))
{IMAGES}{TOKENS}"""
TRANSFORMERS = f"""
import torch
from transformers import ViTModel

vit = ViTModel.from_pretrained({{folder}}, add_pooling_layer=False).eval()
{IMAGES}with torch.inference_mode():
    # Other sizes need vit(…, interpolate_pos_encoding=True). From files, such pixels are made by
    # transformers.AutoImageProcessor.from_pretrained({{folder}}).
    tokens = vit((images - mean) / std).last_hidden_state
cls, patches = tokens[:, 0], tokens[:, 1:]
"""
ONNX = """
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession({folder} + "/model.onnx")
images = np.random.rand(1, 3, {px}, {px}).astype("float32")  # yours: RGB in 0 … 1
mean = np.array({mean}, "float32").reshape(3, 1, 1)
std = np.array({std}, "float32").reshape(3, 1, 1)
cls, patches = session.run(None, {{"images": (images - mean) / std}})  # any multiple of {patch} px
"""
SNIPPETS = {
    "timm": TIMM,
    "transformers": TRANSFORMERS,
    "torchhub": TORCHHUB,
    "onnx": ONNX,
    "safetensors": SAFETENSORS,
}


def snippet(kind: str, folder: str, page: WeightsPage) -> str:
    return SNIPPETS[kind].format(
        folder=_quoted(folder),
        local_folder=_quoted(f"local-dir:{folder}"),
        px=page.image_px,
        patch=page.patch_px,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
