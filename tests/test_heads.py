"""The projection head: what is shared, what is normalised."""

import torch

from croc.config import HeadConfig
from croc.method.heads import ProjectionHead, Prototypes

CONFIG = HeadConfig(hidden=32, bottleneck=8, image_prototypes=20, cluster_prototypes=12)


def test_outputs_are_weight_normalised_products_of_unit_features():
    head = ProjectionHead(16, CONFIG)
    x = torch.randn(5, 16)
    features = head.trunk(x)
    features = features / features.norm(dim=-1, keepdim=True)
    for output, prototypes in ((head.images(x), head.image), (head.clusters(x), head.cluster)):
        directions = prototypes.directions / prototypes.directions.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(output, features @ (prototypes.lengths * directions).T)
    assert head.images(x).shape == (5, 20)
    assert head.clusters(x).shape == (5, 12)


def test_prototypes_equal_torchs_weight_norm():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 20, bias=False))
    prototypes = Prototypes(8, 20, unit=False)
    with torch.no_grad():
        prototypes.lengths.copy_(torch.rand(20, 1) + 0.5)
        layer.parametrizations.weight.original0.copy_(prototypes.lengths)
        layer.parametrizations.weight.original1.copy_(prototypes.directions)
    x = torch.randn(3, 8)
    torch.testing.assert_close(prototypes(x), layer(x))


def test_lengths_start_at_one_and_stay_if_asked():
    assert torch.equal(ProjectionHead(16, CONFIG).image.lengths, torch.ones(20, 1))
    assert ProjectionHead(16, CONFIG).image.lengths.requires_grad
    assert not Prototypes(8, 20, unit=True).lengths.requires_grad


def test_the_trunk_is_dinos():
    head = ProjectionHead(384, HeadConfig(image_prototypes=4, cluster_prototypes=4))
    kinds = [type(layer).__name__ for layer in head.trunk]
    assert kinds == ["Linear", "GELU", "Linear", "GELU", "Linear"]
    shapes = [layer.weight.shape for layer in head.trunk if hasattr(layer, "weight")]
    assert shapes == [(2048, 384), (2048, 2048), (256, 2048)]
