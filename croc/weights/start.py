"""Starting a run from weights: a ViT from anywhere into a backbone that is to be trained."""

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from croc.errors import UserError
from croc.eval.features import INIT, VitBackbone, open_backbone
from croc.method.backbone import Backbone
from croc.weights.build import fill


def load_into(backbone: Backbone, spec: str) -> str:
    """Fill a backbone's ViT from a run, a checkpoint, timm:NAME, timm:NAME@FILE or a file.

    Returns where the weights came from, for the log. Heads are no part of a backbone and stay
    fresh; positions are resampled to the backbone's grid.
    """
    if spec.startswith("random:"):
        raise UserError(f"--init {spec}: that has no weights to start from; leave --init out")
    opened = open_backbone(spec, backbone.vit.patch_embed.img_size[0], flag=INIT)
    if not isinstance(opened, VitBackbone):
        raise UserError(f"--init {spec}: {opened.name} is a ConvNet, the backbone is a ViT")
    ours, theirs = _measures(backbone.vit), _measures(opened.vit)
    unlike = [
        f"{name} {theirs[name]}, not {ours[name]}" for name in ours if theirs[name] != ours[name]
    ]
    if unlike:
        raise UserError(f"--init {spec} does not fit --model.name: it has {', '.join(unlike)}")
    weights = opened.vit.state_dict()
    said = opened.origin
    if isinstance(opened.vit.norm, nn.Identity):
        weights |= {f"norm.{name}": value for name, value in backbone.vit.norm.state_dict().items()}
        said += ", which has no final norm: that starts fresh"
    fill(backbone.vit, weights, f"--init {spec}")
    return said


def _measures(vit: VisionTransformer) -> dict[str, object]:
    block = vit.blocks[0]
    return {
        "width": vit.embed_dim,
        "depth": len(vit.blocks),
        "heads": block.get_submodule("attn").num_heads,
        "patches of": f"{vit.patch_embed.patch_size[0]} px",
        "registers": vit.num_reg_tokens,
        "class token": vit.cls_token is not None,
        "a position for the class token": not vit.no_embed_class,
        "layer scale": hasattr(block, "ls1") and not isinstance(block.ls1, nn.Identity),
    }
