"""For `torch.hub.load(…, "backbone")`: a plain ViT of timm's, with weights that lie beside.

This file stands in the repository's root and in every folder of `croc export RUN --to torchhub`;
it needs nothing else of the project.
"""

dependencies = ["torch", "timm", "safetensors"]


def backbone(name=None):
    """A ViT without a classifier, ready for inference: `forward_features(images)` gives the tokens.

    `name` is that of a file in weights/; by default it is model.safetensors beside this file.
    """
    import json
    from pathlib import Path

    import timm
    from safetensors import safe_open
    from safetensors.torch import load_file

    here = Path(__file__).parent
    path = here / "model.safetensors" if name is None else here / f"weights/{name}.safetensors"
    if not path.is_file():
        names = sorted(found.stem for found in here.glob("weights/*.safetensors"))
        raise ValueError(f"there is no {path.name} here; names: {', '.join(names) or 'none'}")
    with safe_open(path, framework="pt") as file:
        page = json.loads(file.metadata()["croc"])
    vit = timm.create_model(
        page["model"],
        patch_size=page["patch_px"],
        depth=page["depth"],
        img_size=page["image_px"],
        num_classes=0,
        global_pool="token",
        dynamic_img_size=True,
    )
    vit.load_state_dict(load_file(path))
    return vit.eval()
