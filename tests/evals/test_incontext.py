"""In-context segmentation against loops, scikit-learn, and made-up data whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsRegressor
from torch import Tensor

from croc.errors import UserError
from croc.eval.datasets import Labelled
from croc.eval.incontext import Memory, choose, count_labels, evaluate_incontext, fill_memory
from croc.eval.protocols import InContextConfig
from croc.eval.tracking import silent
from tests.evals.test_linear import SecondToLast
from tests.oracles import incontext as oracle

CONFIG = InContextConfig(image_px=32, label_px=32)
CPU = torch.device("cpu")


class Patches:
    """Images of 8 px squares of one class each: 0 dark, 1 bright, 255 in the first one."""

    classes: tuple[str, ...] = ("dark", "bright")

    def __init__(self, count: int, seed: int, bright: float = 0.5) -> None:
        generator = np.random.default_rng(seed)
        self.bright = (generator.random((count, 4, 4)) < bright).astype(np.uint8)
        self.shade = generator.integers(-40, 40, (count, 4, 4, 3))

    def __len__(self) -> int:
        return len(self.bright)

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> Labelled:
        squares = 60 + 130 * self.bright[index][..., None] + self.shade[index]
        image = squares.astype(np.uint8).repeat(8, axis=0).repeat(8, axis=1)
        labels = self.bright[index].repeat(8, axis=0).repeat(8, axis=1)
        labels[:8, :8] = 255
        return Labelled(image, labels, str(index))


class Unlabelled(Patches):
    def read(self, index: int) -> Labelled:
        read = super().read(index)
        return Labelled(read.image, np.full_like(read.labels, 255), read.name)


class MeanColour:
    """A backbone whose features are the mean colours of 8 px squares."""

    name = "mean colour"
    stride_px = 8

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        return F.avg_pool2d(images, 8)


class Halved(MeanColour):
    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        return super().features(images).bfloat16()


class Blind(MeanColour):
    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(len(images), 3, 4, 4, generator=generator)


def random_memory(
    entries: int, width: int, classes: int, seed: int, neighbours: int, **chunks: int
) -> Memory:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(entries, width, generator=generator, dtype=torch.float64)
    histograms = torch.rand(entries, classes, generator=generator, dtype=torch.float64)
    unit, parts = F.normalize(features, dim=1), F.normalize(histograms, p=1.0, dim=1)
    return Memory(unit, parts, neighbours, 0.05, **chunks)


def random_features(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 7 * torch.randn(shape, generator=generator, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(2, 6), st.integers(1, 4)),
    neighbours=st.integers(1, 45),
    chunks=st.tuples(st.integers(1, 20), st.integers(1, 45)),
    grid=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 1000),
)
def test_a_prediction_is_what_the_loops_say(sizes, neighbours, chunks, grid, seed):
    entries, width, classes = sizes
    images, rows, columns = grid
    options = {"queries_at_once": chunks[0], "entries_at_once": chunks[1]}
    memory = random_memory(entries, width, classes, seed, neighbours, **options)
    features = random_features(seed + 1, images, width, rows, columns)
    got = memory.predict(features)
    assert got.shape == (images, classes, rows, columns)
    bank, histograms = memory.features.tolist(), memory.histograms.tolist()
    for image, y, x in np.ndindex(images, rows, columns):
        query = features[image, :, y, x].tolist()
        expected = oracle.predict(query, bank, histograms, neighbours, 0.05)
        assert got[image, :, y, x].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("neighbours", [1, 5, 30])
def test_a_prediction_is_scikit_learns(neighbours: int):
    memory = random_memory(200, 8, 5, 0, neighbours=neighbours, entries_at_once=64)
    features = random_features(1, 2, 8, 3, 4)

    def weigh(distances: np.ndarray) -> np.ndarray:
        return np.exp(-distances / 0.05)  # cosine distance is 1 - cosine

    model = KNeighborsRegressor(neighbours, weights=weigh, metric="cosine", algorithm="brute")  # pyright: ignore[reportArgumentType]
    model.fit(memory.features.numpy(), memory.histograms.numpy())
    expected = model.predict(features.permute(0, 2, 3, 1).reshape(-1, 8).numpy())
    got = memory.predict(features).permute(0, 2, 3, 1).reshape(-1, 5)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_features_are_looked_up_in_float32(dtype: torch.dtype):
    wide = random_memory(500, 16, 4, 2, neighbours=10)
    narrow = replace(wide, features=wide.features.to(dtype), histograms=wide.histograms.float())
    features = random_features(3, 1, 16, 5, 5).to(dtype)
    got = narrow.predict(features)
    assert got.dtype == torch.float32
    rounded = replace(wide, features=narrow.features.double())
    torch.testing.assert_close(got.double(), rounded.predict(features.double()), atol=1e-4, rtol=0)


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    classes=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_labels_of_a_patch_are_counted_as_by_loops(size, grid, classes, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, (3, *size))
    labels[generator.random(labels.shape) < 0.3] = 255
    got = count_labels(torch.from_numpy(labels), classes, *grid)
    for image in range(3):
        expected = oracle.count_labels(labels[image], classes, *grid)
        assert np.array_equal(got[image].numpy(), expected)


def test_labels_of_no_class_are_refused():
    for value in (-1, 2, 254):
        with pytest.raises(UserError, match=r"labels out of range"):
            count_labels(torch.tensor([[[0, value]]]), 2, 1, 1)


@settings(max_examples=40, deadline=None)
@given(patches=st.integers(1, 12), classes=st.integers(1, 4), seed=st.integers(0, 1000))
def test_the_choice_is_what_the_loops_say(patches: int, classes: int, seed: int):
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 9, (3, patches, classes))
    counts[generator.random(counts.shape) < 0.6] = 0
    shares = generator.integers(0, patches + 2, 3)
    draws = generator.uniform(0, 1, (3, patches))
    got = choose(*map(torch.from_numpy, (counts, shares, draws)))
    for image in range(3):
        expected = oracle.choose(counts[image], shares[image], draws[image].tolist())
        assert set(got[image].nonzero()[:, 0].tolist()) == expected


def test_rare_classes_are_remembered_more_often():
    train = Patches(300, 0, bright=0.15)
    memory = fill_memory(MeanColour(), train, replace(CONFIG, memory=300 * 3), CPU)
    # The first of 16 patches is ignored; the others would be as likely if draws alone decided.
    by_chance = 3 * train.bright.reshape(300, 16)[:, 1:].mean(axis=1).sum()
    assert memory.histograms[:, 1].sum() > 2 * by_chance


@pytest.mark.parametrize(
    ("size", "expected"), [(1, 1), (7, 7), (20, 20), (47, 47), (180, 180), (181, 180), (9999, 180)]
)
def test_the_memory_is_bounded_and_full(size: int, expected: int):
    memory = fill_memory(MeanColour(), Patches(12, 0), replace(CONFIG, memory=size), CPU)
    assert len(memory.features) == len(memory.histograms) == expected


def test_every_image_has_its_share():
    class Numbered(MeanColour):
        """Features that tell the image: angles by the order in which images are seen."""

        seen = 0

        def features(self, images: Tensor, blocks: int = 1) -> Tensor:
            numbers = torch.arange(self.seen, self.seen + len(images)).float()
            self.seen += len(images)
            angles = torch.stack([numbers.cos(), numbers.sin()], dim=1)
            return angles[:, :, None, None].expand(-1, -1, 4, 4)

    config = replace(CONFIG, memory=50)
    found = fill_memory(Numbered(), Patches(6, 0), config, CPU, batch=4).features
    expected = torch.tensor([8, 8, 9, 8, 8, 9])  # 50 / 6 = 8⅓
    numbers = torch.arange(6).repeat_interleave(expected).float()
    torch.testing.assert_close(found, torch.stack([numbers.cos(), numbers.sin()], dim=1))


def test_the_seed_decides_and_the_batch_does_not():
    config = replace(CONFIG, memory=60)

    def fill(seed: int, batch: int, workers: int = 0) -> Memory:
        chosen = replace(config, seed=seed)
        return fill_memory(MeanColour(), Patches(11, 0), chosen, CPU, workers, silent, batch)

    one = fill(0, 32)
    for same in (fill(0, 32), fill(0, 3), fill(0, 1), fill(0, 4, workers=1)):
        assert torch.equal(one.features, same.features)
        assert torch.equal(one.histograms, same.histograms)
    assert not torch.equal(one.features, fill(1, 32).features)


def test_remembered_images_get_their_own_labels():
    train = Patches(5, 0)
    config = replace(CONFIG, image_px=40, label_px=25, neighbours=1)  # a grid of 5 × 5
    memory = fill_memory(MeanColour(), train, config, CPU)
    lengths = memory.features.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    torch.testing.assert_close(memory.histograms.sum(dim=1), torch.ones_like(lengths))
    found = memory.predict(memory.features.mT.reshape(1, 3, -1, 1))
    assert torch.equal(found[0, :, :, 0].mT, memory.histograms)


def test_an_easy_answer_is_found():
    parts = (Patches(12, 0), Patches(6, 1))
    # Upsampling blurs the borders of the squares; at a pixel a patch there is nothing to blur.
    assert evaluate_incontext(MeanColour(), *parts, CONFIG, CPU).iou.mean > 0.8
    exact = replace(CONFIG, label_px=4)
    assert evaluate_incontext(MeanColour(), *parts, exact, CPU).iou.mean == 1
    assert evaluate_incontext(Halved(), *parts, exact, CPU).iou.mean == 1
    assert evaluate_incontext(MeanColour(), *parts, replace(exact, memory=24), CPU).iou.mean == 1


def test_blind_features_do_not_find_it():
    report = evaluate_incontext(Blind(), Patches(12, 0), Patches(6, 1), CONFIG, CPU)
    assert report.iou.mean < 0.45


def test_the_memory_and_the_scores_are_of_the_same_blocks():
    backbone = SecondToLast()
    config = replace(CONFIG, blocks=2, label_px=4)
    assert evaluate_incontext(backbone, Patches(12, 0), Patches(6, 1), config, CPU).iou.mean > 0.9
    assert backbone.asked == [2, 2]


def test_progress_is_told_to_the_end():
    told = []

    def track(items, what, total):
        made = list(items)
        yield from made
        told.append((what, len(made), total))

    parts = (Patches(40, 0), Patches(33, 1))
    evaluate_incontext(MeanColour(), *parts, CONFIG, CPU, track=track)
    assert told == [("memory", 2, 2), ("scores", 2, 2)]


def test_bad_parts_are_refused():
    for empty in (Unlabelled(3, 0), Patches(0, 0)):
        with pytest.raises(UserError, match=r"^no labelled patch for the memory: .*$"):
            evaluate_incontext(MeanColour(), empty, Patches(3, 1), CONFIG, CPU)
    other = Patches(3, 1)
    other.classes = ("dark", "bright", "blinding")
    with pytest.raises(UserError, match="different classes"):
        evaluate_incontext(MeanColour(), Patches(3, 0), other, CONFIG, CPU)


@pytest.mark.parametrize("name", ["image_px", "label_px", "blocks", "memory", "neighbours"])
def test_numbers_below_one_are_refused(name: str):
    flag = f"--incontext.{name}".replace("_", "-")
    with pytest.raises(UserError, match=rf"^{flag} must be .*: 0$"):
        replace(CONFIG, **{name: 0})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_temperatures_out_of_range_are_refused(value: float):
    with pytest.raises(UserError, match=r"^--incontext.temperature must be"):
        replace(CONFIG, temperature=value)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_remembers_and_finds_the_same():
    config, device = replace(CONFIG, memory=90), torch.device("cuda")
    here, there = (fill_memory(MeanColour(), Patches(11, 0), config, d) for d in (CPU, device))
    torch.testing.assert_close(there.features.cpu(), here.features)
    assert torch.equal(there.histograms.cpu(), here.histograms)
    memory = random_memory(3000, 16, 5, 0, neighbours=30, entries_at_once=700)
    moved = replace(memory, features=memory.features.cuda(), histograms=memory.histograms.cuda())
    features = random_features(1, 2, 16, 9, 9)
    found = moved.predict(features.cuda())
    torch.testing.assert_close(found.cpu(), memory.predict(features), atol=1e-9, rtol=0)
