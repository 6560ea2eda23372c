"""For `torch.hub.load(…, "backbone", name="coco-20min")`: a plain ViT of timm's with weights that
this repository ships. It needs nothing else of the project."""

dependencies = ["torch", "timm", "safetensors"]


def backbone(name="coco-20min"):
    """A ViT without a classifier, ready for inference: `forward_features(images)` gives the tokens.

    `name` is that of a file in weights/.
    """
    import json
    from pathlib import Path

    import timm
    from safetensors import safe_open
    from safetensors.torch import load_file

    folder = Path(__file__).parent / "weights"
    path = folder / f"{name}.safetensors"
    if not path.is_file():
        names = sorted(file.stem for file in folder.glob("*.safetensors"))
        raise ValueError(f"there is no {path.name} here; names: {', '.join(names) or 'none'}")
    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["croc"])
    vit = timm.create_model(
        record["model"],
        patch_size=record["patch_px"],
        depth=record["depth"],
        img_size=record["image_px"],
        num_classes=0,
        global_pool="token",
        dynamic_img_size=True,
    )
    vit.load_state_dict(load_file(path))
    return vit.eval()
