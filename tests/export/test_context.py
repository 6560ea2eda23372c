"""`croc export --context`: a block that adds the tokens' mean, in every layout and by hand."""

import json
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

from croc.cli import main
from croc.errors import UserError
from croc.evals.features import VitBackbone, open_backbone
from croc.export import Export, export
from croc.export.context import _deviation, add_context
from croc.export.source import open_source
from croc.show.look import look_at_weights
from croc.weights.page import read_page
from croc.weights.runs import find_checkpoint, open_run
from tests.export.sources import make_file

IMAGES = torch.rand(2, 3, 48, 32, generator=torch.Generator().manual_seed(0))
FOREIGN = ("vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2", "vit_base_patch16_clip_224")


@torch.no_grad()
def tokens_before_the_norm(backbone: VitBackbone) -> torch.Tensor:
    seen = []
    hook = backbone.vit.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    backbone.vit.forward_features(IMAGES if backbone.stride_px == 16 else IMAGES[..., :42, :28])
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("model", FOREIGN)
def test_it_adds_the_mean_of_all_tokens_to_each(model: str, tmp_path: Path):
    """Registers, layer scale and a norm before the blocks make no difference."""
    patch_px = 14 if "14" in model else 16
    file = make_file(tmp_path / "a.safetensors", model, patch_px, 2 * patch_px)
    source = open_source(str(file), None)
    longer = add_context(source, 0.7)
    before, after = map(tokens_before_the_norm, (source.backbone, longer.backbone))
    mean = F.layer_norm(before, before.shape[-1:]).mean(dim=1, keepdim=True)
    scale = 0.7 * _deviation(source.backbone, source.page.image_px)
    assert scale > 0.01
    torch.testing.assert_close(after, before + scale * mean, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(after, before, atol=1e-2)
    assert (longer.page.depth, longer.page.context) == (source.page.depth + 1, 0.7)


def test_what_is_exported_has_it_whoever_loads_it(run: Path, tmp_path: Path):
    file, card = export(Export(str(run), str(tmp_path / "a.safetensors"), context=1.0))
    ours = open_backbone(str(file))
    page = read_page(file)
    assert page is not None
    plain = open_source(str(run), None)
    assert (page.context, page.depth) == (1.0, plain.page.depth + 1)
    assert "the last block was not trained: it adds 1 × the mean" in card.read_text()
    export(Export(str(file), "timm", folder=str(tmp_path / "there")))
    again = read_page(tmp_path / "there" / "model.safetensors")
    assert (again and again.context) == 1.0
    theirs = timm.create_model(f"local-dir:{tmp_path / 'there'}", pretrained=True).eval()
    with torch.no_grad():
        expected = theirs.forward_features(IMAGES)[:, 1:].mT.unflatten(2, (6, 4))
    torch.testing.assert_close(ours.features(IMAGES), expected, rtol=1e-4, atol=1e-4)
    without = plain.backbone.features(IMAGES)
    spread = [f.var(dim=(2, 3)).mean() / f.var(dim=(0, 2, 3)).mean() for f in (expected, without)]
    assert spread[0] < 0.95 * spread[1]  # the tokens of an image are more alike


def test_folders_have_it_at_once(run: Path, tmp_path: Path):
    """Without a file between, in other names; and the blocks before it are as they were."""
    folder = tmp_path / "there"
    export(Export(str(run), "transformers", folder=str(folder), context=1.0))
    vit = transformers.ViTModel.from_pretrained(folder, add_pooling_layer=False).eval()
    source = add_context(open_source(str(run), None), 1.0)
    square = IMAGES[..., :32, :]
    with torch.no_grad():
        tokens = vit(square).last_hidden_state[:, 1:].mT.unflatten(2, (4, 4))
    torch.testing.assert_close(tokens, source.backbone.features(square), rtol=1e-4, atol=1e-4)
    before, after = source.backbone.features(square, blocks=2).chunk(2, dim=1)
    torch.testing.assert_close(before, open_backbone(str(run)).features(square))
    torch.testing.assert_close(after, tokens, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_clusters_are_those_of_the_block_that_learned(run: Path, tmp_path: Path):
    file, _ = export(
        Export(str(run), str(tmp_path / "a.safetensors"), dtype="float32", context=1.0)
    )
    found = find_checkpoint(run)
    assert found is not None
    trained, exported = open_run(*found).backbone.eval(), look_at_weights(str(file)).backbone
    pixels = IMAGES[None, :, :, :32]
    for kind in ("last", "values", "keys"):
        before, after = trained.describe(pixels, kind), exported.describe(pixels, kind)
        torch.testing.assert_close(after.heads, before.heads)
        torch.testing.assert_close(after.cls_heads, before.cls_heads)
        torch.testing.assert_close(after.attention, before.attention)
    assert not torch.allclose(after.patches, before.patches, atol=1e-2)
    torch.testing.assert_close(after.patches, exported(pixels)[1])


def test_what_cannot_be_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    to = ["--to", str(tmp_path / "a.safetensors")]
    for weight in ("0", "-1", "1e-60", "1e39", "inf", "nan"):
        assert main(["export", str(run), *to, "--context", weight]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"croc: --context {float(weight):g}: give a number in 0.001 … 100")
        assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
    file, _ = export(Export(str(run), to[1], context=0.5))
    with pytest.raises(UserError, match="has such a block already"):
        export(Export(str(file), str(tmp_path / "b.safetensors"), context=0.5))


@pytest.mark.parametrize("wrong", [{"depth": 1}, {"context": float("nan")}, {"context": "much"}])
def test_a_page_that_tells_of_an_impossible_block_is_refused(wrong: dict, tmp_path: Path):
    file = make_file(tmp_path / "a.safetensors", "vit_tiny_patch16_224")
    with safe_open(file, "pt") as held:
        weights = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
        page = json.loads(held.metadata()["croc"])
    changed = {"format": "pt", "croc": json.dumps(page | {"depth": 2, "context": 1.0} | wrong)}
    save_file(weights, file, changed)
    with pytest.raises(UserError, match=r"what .* says of itself cannot be read"):
        read_page(file)
