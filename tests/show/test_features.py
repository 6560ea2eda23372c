"""PCA against scikit-learn, the chosen patch, and the picture of it all."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.decomposition import PCA

from croc.errors import UserError
from croc.lab.show import features
from croc.lab.show.features import describe, draw_features, find_patch, project, similarity, stretch
from croc.lab.show.look import look_at_run
from tests.show.test_figures import assert_nothing_clipped


def make_tokens(count: int, seed: int = 0) -> torch.Tensor:
    scales = torch.tensor([9.0, 5.0, 3.0, *([0.5] * 9)])
    return torch.randn(count, 12, generator=torch.manual_seed(seed)) * scales


def test_the_three_components_are_pca_s():
    tokens = make_tokens(200)
    pca = PCA(3, svd_solver="full").fit(tokens.double().numpy())
    largest = np.abs(pca.components_).argmax(axis=1)
    signs = np.sign(pca.components_[np.arange(3), largest])
    expected = pca.transform(tokens.double().numpy()) * signs
    low, high = np.quantile(expected, [0.02, 0.98], axis=0)
    expected = ((expected - low) / (high - low)).clip(0, 1)
    np.testing.assert_allclose(project([tokens])[0].numpy(), expected, atol=1e-5)


def test_the_picture_does_not_hang_on_the_order_of_the_tokens():
    tokens, order = make_tokens(100), torch.randperm(100, generator=torch.manual_seed(1))
    torch.testing.assert_close(project([tokens[order]])[0], project([tokens])[0][order])


def test_together_the_colours_mean_the_same():
    first, second = make_tokens(40), make_tokens(30, 1) + 4
    together = project([first, second])
    assert [len(each) for each in together] == [40, 30]
    torch.testing.assert_close(torch.cat(together), project([torch.cat([first, second])])[0])
    assert not torch.allclose(together[0], project([first])[0])


@pytest.mark.parametrize("count", [1, 2])
def test_few_tokens_or_equal_ones_give_some_colour(count: int):
    for tokens in (make_tokens(count), torch.ones(count, 12)):
        (colours,) = project([tokens])
        assert colours.shape == (count, 3)
        assert torch.isfinite(colours).all()


def test_outliers_do_not_stretch_the_colours():
    values = torch.linspace(0, 1, 1001)[:, None]
    outlier = torch.cat([values, torch.full((3, 1), 1e6)])
    torch.testing.assert_close(stretch(outlier)[:1001], stretch(values), atol=0.01, rtol=0)


def test_a_patch_by_the_photograph_s_pixels():
    size, grid = (40, 60), (5, 8)
    assert find_patch("x", size, grid, None) == (2, 4)
    assert find_patch("x", size, grid, (0.0, 0.0)) == (0, 0)
    assert find_patch("x", size, grid, (59.9, 39.9)) == (4, 7)
    assert find_patch("x", size, grid, (7.4, 8.0)) == (1, 0)
    for outside in ((60.0, 10.0), (10.0, 40.0), (-1.0, 5.0), (float("nan"), 5.0)):
        with pytest.raises(UserError, match=r"lies outside x: 60 × 40 pixels"):
            find_patch("x", size, grid, outside)


def test_what_is_compared_with_the_patch(run: Path, photograph: str):
    found = describe(look_at_run(run), photograph, 64, (45.0, 5.0))
    assert found.grid == (5, 8)
    assert found.patch == (0, 6)
    cosine = similarity(found)
    assert cosine[6] == pytest.approx(1, abs=1e-6)
    assert int(cosine.argmax()) == 6
    expected = torch.cosine_similarity(found.patches, found.patches[6:7])
    torch.testing.assert_close(cosine, expected)
    torch.testing.assert_close(found.attention.sum(dim=-1), torch.ones(3))


def test_the_picture_clips_nothing_whatever_the_method(
    mae_run: Path, photograph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tall = str(tmp_path / "tall.png")
    Image.new("RGB", (10, 200)).save(tall)
    kept: list[Figure] = []
    monkeypatch.setattr(features, "save_figure", lambda figure, path: kept.append(figure))
    look = look_at_run(mae_run)
    assert draw_features(look, (photograph, tall), None, 64) == mae_run / "features.png"
    (figure,) = kept
    assert len(figure.axes) == 2 * 7
    assert_nothing_clipped(figure)
