"""Named configurations. Each docstring gives the command and known results."""

import difflib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from croc.config import (
    AnchorConfig,
    ClusterConfig,
    CrocConfig,
    DataConfig,
    DinoConfig,
    DistillationConfig,
    HeadConfig,
    ImageHeadConfig,
    LossConfig,
    MaeConfig,
    ModelConfig,
    OptimConfig,
    PretrainConfig,
    RunConfig,
    ViewsConfig,
    read_config,
)
from croc.errors import UserError

Section = TypeVar("Section", ImageHeadConfig, DistillationConfig)
WEAK_COLORS = ViewsConfig(
    brightness=0.3,
    contrast=0.3,
    saturation=0.1,
    hue=0.02,
    grayscale=0.0,
    blur=(0.0, 0.0),
    solarize=(0.0, 0.0),
)
SHARP_TEACHER = LossConfig(teacher_temp=0.02, temp_warmup_epochs=0, centering="sinkhorn")


def coco_vits16() -> CrocConfig:
    """ViT-S/16 on COCO train2017 (118,287 images), 300 epochs, batch size 256.

    croc pretrain coco-vits16 --data.root /data/coco

    The paper's main setting: λ_pos 4, K_start 12, clustering of values. Its linear segmentation
    scores, as corrected by the authors: VOC12 54.9, COCO-Things 55.7, COCO-Stuff 49.9 mIoU.
    """
    return CrocConfig(data=DataConfig(subfolders=("train2017",)))


def cocoplus_vits16() -> CrocConfig:
    """ViT-S/16 on COCO+ (train2017 and unlabeled2017, 241,690 images), 300 epochs.

    croc pretrain cocoplus-vits16 --data.root /data/coco

    Settings of coco-vits16. The paper's scores, corrected: 61.6, 64.4, 52.2 mIoU.
    """
    return replace(coco_vits16(), data=DataConfig(subfolders=("train2017", "unlabeled2017")))


def imagenet_vits16() -> CrocConfig:
    """ViT-S/16 on ImageNet's training images (1,281,167), 300 epochs, batch size 1,024.

    croc pretrain imagenet-vits16 --data.root /data/imagenet

    λ_pos 3, K_start 12, clustering of keys; the learning rate scales with the batch size to 2e-3.
    The paper's scores: 70.6, 66.1, 52.6 mIoU.
    """
    return CrocConfig(
        data=DataConfig(subfolders=("train",)),
        cluster=ClusterConfig(position_weight=3.0, tokens="keys"),
        optim=OptimConfig(batch=1024),
    )


def coco_20min() -> CrocConfig:
    """ViT-S/16 with 11 blocks, on 15,000 COCO images at 192 px: seven minutes on one H200.

    croc data pack SHARDS --to PACK --max-side-px 192
    croc pretrain coco-20min --data.root PACK --run.folder runs/coco-20min
    croc export runs/coco-20min --to coco-20min.safetensors

    Differences from the paper, so that three million samples are enough:
    - Muon optimizes the matrices of the blocks, at three times AdamW's learning rate, which in turn
      is twice the paper's. Weight decay increases only to 0.1, and there is no stochastic depth.
    - 96 px views for most of the run, then 192 px: small views train faster.
    - Crops of 10–60% of the area, each with the position embeddings of a random window of the
      grid: with larger crops, teacher and student agree on positions instead of objects. For the
      same reason, the cluster loss has half the weight of the image loss.
    - Sinkhorn centering, few prototypes, and a sharp teacher (τ .02) with low EMA momentum: with
      the paper's settings, its output stays nearly uniform for the first minutes.
    - Weak color augmentation; otherwise, tokens of different images are hard to tell apart.
    - Eleven blocks.

    On COCO-Things mini and IDD-Lite: 21.1 and 47.9 mIoU with a linear layer (random weights: 8.5
    and 31.5), 10.0 and 25.6 with K-means (8.2 and 17.4); see docs/results.md.
    """
    return CrocConfig(
        data=DataConfig(max_side_px=192),
        views=replace(WEAK_COLORS, size_px=192, early_px=96, early_epochs=156, scale=(0.1, 0.6)),
        model=ModelConfig(depth=11, drop_path=0.0, position_window=(0.3, 1.0)),
        head=HeadConfig(image_prototypes=1024, cluster_prototypes=1024),
        cluster=ClusterConfig(k_start=8),
        loss=replace(SHARP_TEACHER, teacher_momentum=0.95, alpha=0.5),
        optim=OptimConfig(
            epochs=200,
            lr=1e-3,
            warmup_epochs=12,
            weight_decay_end=0.1,
            matrix_optimizer="muon",
            muon_lr_factor=3.0,
        ),
        run=RunConfig(checkpoint_every_steps=2_000, keep_every_steps=4_000),
    )


def posttrain() -> CrocConfig:
    """Any pretrained ViT (--init), adapted to 1,000 to 10,000 images, on one GPU.

    croc pretrain posttrain --init timm:vit_small_patch14_dinov2.lvd142m --data.root ~/Pictures
    croc pretrain posttrain --init coco-20min --data.root ~/Pictures

    Hardware: one GPU; `--model.grad-checkpointing` for a ViT-L or larger on less than 40 GB. Fifty
    epochs over 5,000 images are 3,900 steps and 250,000 samples. From coco-20min on 1,403 road
    scenes, in four minutes on a shared H200: linear mIoU from 47.9 to 48.1 there, from 21.1 to 20.8
    on COCO-Things mini (docs/posttrain.md).

    Differences from the paper, so that a few thousand images teach the network something without
    making it forget what it knows:
    - The anchor keeps the similarities between patches close to those at the start: strongly at
      first, while the heads are random, and weakly at the end.
    - A low learning rate, lower by a quarter from each block to the one below; two epochs of
      warm-up; low and constant weight decay; no stochastic depth.
    - Small batches, for more steps per epoch, and prototypes that so few images can fill.
      Sinkhorn centering and a sharp teacher (τ .02) that follows quickly, as in coco-20min.
    - Weak color augmentation, as in coco-20min.
    """
    return CrocConfig(
        views=WEAK_COLORS,
        model=ModelConfig(drop_path=0.0),
        head=HeadConfig(image_prototypes=256, cluster_prototypes=1024),
        loss=replace(SHARP_TEACHER, teacher_momentum=0.99),
        anchor=AnchorConfig(weight=10.0, weight_end=1.0),
        optim=OptimConfig(
            batch=64,
            epochs=50,
            lr=2e-4,
            lr_end=1e-6,
            warmup_epochs=2,
            weight_decay_end=0.04,
            clip_gradient=3.0,
            layer_decay=0.75,
        ),
        run=RunConfig(checkpoint_every_steps=250),
    )


def dino_coco_20min() -> DinoConfig:
    """DINO with coco-20min's settings, for comparison at an equal number of samples.

    croc pretrain dino-coco-20min --data.root PACK
    """
    return without_clusters(coco_20min())


def mae_coco_20min() -> MaeConfig:
    """MAE on the same images, for comparison with coco-20min at an equal number of samples.

    croc pretrain mae-coco-20min --data.root PACK

    MAE's own learning rates and crops; epochs and final view size as in coco-20min.
    """
    mae, croc = mae_coco_vits16(), coco_20min()
    return replace(
        mae,
        data=croc.data,
        model=replace(mae.model, depth=croc.model.depth),
        views=replace(mae.views, size_px=croc.views.size_px),
        optim=replace(mae.optim, epochs=croc.optim.epochs),
        run=croc.run,
    )


def demo() -> CrocConfig:
    """A small ViT on synthetic scenes: minutes on two CPU cores, nothing to download.

    croc demo

    Differences from the paper, so that a thousand small steps are enough:
    - Half of the views are grayscale: a scene's colors distinguish images but not classes, and
      would be learned first. The 48 px views get less blur and no solarization.
    - Two blocks on 8 px patches, a narrow head, no stochastic depth: more steps per minute.
    - Sinkhorn centering, few prototypes and a sharp teacher (τ .02). With mean centering, the
      image-level output becomes uniform, or with a sharp teacher collapses to a few prototypes.
    - Lower EMA momentum, a higher learning rate, constant weight decay.
    """
    return CrocConfig(
        data=DataConfig(root=("scenes",), max_side_px=96, scenes=1024, workers=0),
        views=ViewsConfig(
            size_px=48, grayscale=0.5, blur=(0.5, 0.1), blur_sigma=(0.1, 0.7), solarize=(0.0, 0.0)
        ),
        model=ModelConfig(name="vit_tiny_patch16_224", patch_px=8, depth=2, drop_path=0.0),
        head=HeadConfig(hidden=256, bottleneck=64, image_prototypes=64, cluster_prototypes=64),
        cluster=ClusterConfig(k_start=8),
        loss=replace(SHARP_TEACHER, teacher_momentum=0.975),
        optim=OptimConfig(batch=24, epochs=30, lr=6e-3, warmup_epochs=1, weight_decay_end=0.04),
        run=RunConfig(log_every_steps=10, checkpoint_every_steps=420),
    )


def dino_demo() -> DinoConfig:
    """DINO with the demo's settings, for comparison at an equal number of samples.

    croc pretrain dino-demo
    """
    return without_clusters(demo())


def dino_coco_vits16() -> DinoConfig:
    """DINO, ViT-S/16 on COCO train2017, 300 epochs, batch size 256, as trained in the paper.

    croc pretrain dino-coco-vits16 --data.root /data/coco

    CrOC's settings without clusters (the paper's appendix): two views and no local crops. The
    paper's linear segmentation scores: 47.2, 47.1, 46.2 mIoU.
    """
    return without_clusters(coco_vits16())


def mae_coco_vits16() -> MaeConfig:
    """MAE, ViT-S/16 on COCO train2017, 300 epochs, batch size 256, after the paper's appendix.

    croc pretrain mae-coco-vits16 --data.root /data/coco

    Masking, learning rate and decoder are from the paper's appendix; crops without color
    augmentation, β₂ = .95 and normalized target patches are from the MAE paper. The paper's
    scores: 31.7, 35.1, 39.6 mIoU.
    """
    plain = ViewsConfig(
        scale=(0.2, 1.0), jitter=0.0, grayscale=0.0, blur=(0.0, 0.0), solarize=(0.0, 0.0)
    )
    return MaeConfig(
        data=coco_vits16().data,
        views=plain,
        model=ModelConfig(drop_path=0.0),
        optim=OptimConfig(
            lr=1.5e-4,
            lr_end=0.0,
            warmup_epochs=40,
            weight_decay=0.05,
            weight_decay_end=0.05,
            betas=(0.9, 0.95),
        ),
    )


def without_clusters(config: CrocConfig) -> DinoConfig:
    """Remove from a CrOC configuration what CrOC adds to DINO."""
    return DinoConfig(
        data=config.data,
        views=config.views,
        model=config.model,
        optim=config.optim,
        run=config.run,
        head=_as(ImageHeadConfig, config.head),
        loss=_as(DistillationConfig, config.loss),
    )


def _as(kind: type[Section], config: Section) -> Section:
    """A section reduced to the fields of its parent class."""
    return kind(**{field.name: getattr(config, field.name) for field in fields(kind)})


RECIPES: dict[str, Callable[[], PretrainConfig]] = {
    "coco-vits16": coco_vits16,
    "cocoplus-vits16": cocoplus_vits16,
    "imagenet-vits16": imagenet_vits16,
    "dino-coco-vits16": dino_coco_vits16,
    "mae-coco-vits16": mae_coco_vits16,
    "coco-20min": coco_20min,
    "posttrain": posttrain,
    "dino-coco-20min": dino_coco_20min,
    "mae-coco-20min": mae_coco_20min,
    "demo": demo,
    "dino-demo": dino_demo,
}


def open_recipe(name: str) -> tuple[PretrainConfig, str]:
    """The configuration and the name of a recipe, or of a run's config.json."""
    if name in RECIPES:
        return RECIPES[name](), name
    if name.endswith(".json"):
        config, recipe = read_config(Path(name))
        return replace(config, run=replace(config.run, folder=str(Path(name).parent))), recipe
    near = difflib.get_close_matches(name, RECIPES, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"available: {', '.join(RECIPES)}"
    raise UserError(f"unknown recipe {name!r}; {hint}")
