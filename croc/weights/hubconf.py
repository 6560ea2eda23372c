"""For `torch.hub.load(FOLDER, "backbone", source="local")`."""

dependencies = ["torch", "timm", "safetensors"]


def backbone():
    """A plain timm ViT without a classifier, with the weights next to this file."""
    import json
    from pathlib import Path

    import timm
    from safetensors.torch import load_file

    folder = Path(__file__).parent
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vit = timm.create_model(config["architecture"], **config["model_args"])
    vit.load_state_dict(load_file(folder / "model.safetensors"))
    return vit.eval()
