"""The models that can be trained, by the name that `train.model` has.

This module lists them without importing Keras: the settings, their documentation and their error
messages are derived from the list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# Endings of the files of published weights: of Keras, which can download ImageNet's, and of
# Google's Vision Transformers.
KERAS, GOOGLE = ".h5", ".npz"


@dataclass(frozen=True)
class Architecture:
    """A model that can be trained.

    The layers that `build` creates must not depend on `settings.weights`, which only rank 0 loads,
    and must not be random (dropout), as all ranks would draw the same numbers. The training checks
    both.

    Attributes:
        kind: what it computes. Every task says which kind it trains.
            tile_features: `build(tiles, settings)` takes tiles, (n, side, side, 3) with values
            0-255, and returns features, (n, features), as Keras tensors.
            slide_embeddings: `build(slides, settings)` takes slides, (n, height, width, 3) with
            values 0-255, and returns embeddings, (n, rows, columns, channels), as Keras tensors.
            All layers must be local; see `gigatile.whole_slides.receptive_field`.
            tile_embeddings: `build(embeddings, present, settings)` takes the embeddings of a
            slide's tiles, (n, tiles, dimensions), and 0 for padding, (n, tiles), as Keras tensors,
            and returns `BagParts`; see `gigatile.models.bag_classifier`.
            instances: `build(images, settings, frozen)` takes images, (n, height, width, 3) with
            values 0-255, and the number of stages that are not trained, and returns a `Backbone`;
            see `gigatile.models.mask_rcnn`.
            voxel_scores: `build(settings, patch, channels, outputs, activation)` returns the
            `Networks` from patches to scores of each voxel.
        module: has the function `build`.
        description: for the documentation of the settings.
        seconds: of training per megapixel or megavoxel, on a core and on a GPU, for estimates.
        pretrained: ending of the files of published weights that `build` can load. Empty: none;
            `KERAS`: also `imagenet`.
    """

    kind: str
    module: str
    description: str
    seconds: tuple[float, float]
    pretrained: str = ""


ARCHITECTURES = {
    "small_cnn": Architecture(
        "tile_features",
        "gigatile.models.small_cnn",
        "a small network that trains on two cores",
        (0.2, 0.02),
    ),
    "resnet50": Architecture(
        "tile_features",
        "gigatile.models.resnet50",
        "ResNet-50, needs GPUs",
        (5.0, 0.05),
        pretrained=KERAS,
    ),
    "resnet18": Architecture(
        "tile_features",
        "gigatile.models.resnet18",
        "ResNet-18",
        (2.5, 0.03),
    ),
    "densenet121": Architecture(
        "tile_features",
        "gigatile.models.applications",
        "DenseNet-121, needs GPUs",
        (6.0, 0.06),
        pretrained=KERAS,
    ),
    "efficientnetv2_b0": Architecture(
        "tile_features",
        "gigatile.models.applications",
        "EfficientNetV2-B0",
        (2.0, 0.03),
        pretrained=KERAS,
    ),
    "efficientnetv2_s": Architecture(
        "tile_features",
        "gigatile.models.applications",
        "EfficientNetV2-S, needs GPUs",
        (7.0, 0.06),
        pretrained=KERAS,
    ),
    "convnext_tiny": Architecture(
        "tile_features",
        "gigatile.models.applications",
        "ConvNeXt-Tiny, needs GPUs",
        (35.0, 0.06),
        pretrained=KERAS,
    ),
    "vit_tiny": Architecture(
        "tile_features",
        "gigatile.models.vit",
        "a Vision Transformer, ViT-Ti/16",
        (5.0, 0.03),
        pretrained=GOOGLE,
    ),
    "vit_small": Architecture(
        "tile_features",
        "gigatile.models.vit",
        "a Vision Transformer, ViT-S/16, needs GPUs",
        (16.0, 0.05),
        pretrained=GOOGLE,
    ),
    "whole_small": Architecture(
        "slide_embeddings",
        "gigatile.models.whole_small",
        "a small encoder of whole slides that learns on two cores",
        (0.1, 0.01),
    ),
    "whole_resnet50": Architecture(
        "slide_embeddings",
        "gigatile.models.whole_resnet50",
        "ResNet-50 as an encoder of whole slides, needs GPUs",
        (6.0, 0.06),
        pretrained=KERAS,
    ),
    "abmil": Architecture(
        "tile_embeddings",
        "gigatile.models.abmil",
        "gated attention over the embeddings of a slide's tiles",
        (0.01, 0.001),
    ),
    "set_transformer": Architecture(
        "tile_embeddings",
        "gigatile.models.set_transformer",
        "a transformer over the embeddings of a slide's tiles",
        (0.02, 0.002),
    ),
    "mean_embedding": Architecture(
        "tile_embeddings",
        "gigatile.models.mean_embedding",
        "a linear classifier of the mean embedding",
        (0.005, 0.001),
    ),
    "mask_small": Architecture(
        "instances",
        "gigatile.models.mask_small",
        "Mask R-CNN with a small backbone that learns on two cores",
        (1.0, 0.05),
    ),
    "mask_resnet50": Architecture(
        "instances",
        "gigatile.models.mask_resnet50",
        "Mask R-CNN with ResNet-50 and fixed batch normalisation, needs GPUs",
        (40.0, 0.15),
        pretrained=KERAS,
    ),
    "mask_resnet50_gn": Architecture(
        "instances",
        "gigatile.models.mask_resnet50_gn",
        "Mask R-CNN with ResNet-50 and group normalisation, needs GPUs",
        (45.0, 0.2),
    ),
    "small_unet": Architecture(
        "voxel_scores",
        "gigatile.models.unet",
        "a small 3-D U-Net that trains on two cores",
        (1.1, 0.01),
    ),
    "unet": Architecture(
        "voxel_scores",
        "gigatile.models.unet",
        "the 3-D U-Net of nnU-Net, needs GPUs",
        (17.0, 0.05),
    ),
    "small_residual_unet": Architecture(
        "voxel_scores",
        "gigatile.models.unet",
        "a small 3-D U-Net with a residual encoder that trains on two cores",
        (1.6, 0.015),
    ),
    "residual_unet": Architecture(
        "voxel_scores",
        "gigatile.models.unet",
        "nnU-Net with a residual encoder (ResEnc), needs GPUs",
        (30.0, 0.09),
    ),
}


def names_of(kind: str) -> list[str]:
    """Return the names of all architectures of a kind."""
    return [name for name, architecture in ARCHITECTURES.items() if architecture.kind == kind]


def pretrained_names(ending: str) -> str:
    """Return the names of the architectures that can load such files, separated by commas."""
    return ", ".join(name for name, model in ARCHITECTURES.items() if model.pretrained == ending)


def load_builder(name: str) -> Callable[..., Any]:
    """Import the function that builds an architecture; see `Architecture.kind`."""
    return import_module(ARCHITECTURES[name].module).build
