"""Small configurations for tests, with every part of the real ones."""

from dataclasses import replace
from pathlib import Path

from croc.config import (
    ClusterConfig,
    CrocConfig,
    DataConfig,
    DecoderConfig,
    DinoConfig,
    HeadConfig,
    LossConfig,
    MaeConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    ViewsConfig,
)
from croc.recipes import without_clusters


def tiny_config(folder: Path | None = None, **run: object) -> CrocConfig:
    """Two blocks, 16 patches per view, 24 scenes, 3 steps per epoch, 9 steps in all."""
    config = CrocConfig(
        data=DataConfig(root=("scenes",), max_side_px=40, scenes=24, workers=0),
        views=ViewsConfig(size_px=32),
        model=ModelConfig(name="vit_tiny_patch16_224", patch_px=8, depth=2, drop_path=0.3),
        head=HeadConfig(hidden=48, bottleneck=16, image_prototypes=64, cluster_prototypes=32),
        cluster=ClusterConfig(k_start=5),
        loss=LossConfig(temp_warmup_epochs=2, teacher_momentum=0.9),
        optim=OptimConfig(batch=8, epochs=3, lr=2e-2, warmup_epochs=1, clip_gradient=3.0),
        run=RunConfig(
            folder=None if folder is None else str(folder),
            log_every_steps=1,
            checkpoint_every_steps=2,
            accelerator="cpu",
        ),
    )
    return replace(config, run=replace(config.run, **run))


def tiny_dino(folder: Path | None = None, **run: object) -> DinoConfig:
    return without_clusters(tiny_config(folder, **run))


def tiny_mae(folder: Path | None = None, **run: object) -> MaeConfig:
    config = tiny_config(folder, **run)
    return MaeConfig(
        data=config.data,
        views=config.views,
        model=config.model,
        optim=replace(config.optim, lr=2e-3),
        run=config.run,
        decoder=DecoderConfig(width=32, depth=1, heads=2),
    )


_FLAGS = """
--data.max-side-px 40 --data.scenes 24 --views.size-px 32 --model.depth 2 --model.drop-path 0.3
--head.hidden 48 --head.bottleneck 16 --head.image-prototypes 64 --head.cluster-prototypes 32
--cluster.k-start 5 --loss.temp-warmup-epochs 2 --loss.teacher-momentum 0.9
--optim.batch 8 --optim.epochs 3 --optim.warmup-epochs 1 --optim.lr 2e-2
--optim.clip-gradient 3.0 --run.log-every-steps 1 --run.checkpoint-every-steps 2
--run.accelerator cpu
"""
FLAGS = _FLAGS.split()
"""`tiny_config` as options of `croc pretrain demo`."""
