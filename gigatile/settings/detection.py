"""The section `detection`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from gigatile.settings.section import Section

Side = Annotated[int, Field(ge=64, le=8192)]
Edge = Annotated[int, Field(ge=64, le=8192)]
Positive = Annotated[float, Field(gt=0, le=10_000)]
# Sides of an image are padded to a multiple of the largest stride of the pyramid's convolutions.
STRIDE = 32


class DetectionSettings(Section):
    """The model that detects instances, and how it sees images.

    Names and defaults are those of detectron2 where it has them.
    """

    # Keys that training does not depend on.
    INFERENCE: ClassVar[frozenset[str]] = frozenset(
        {
            "rpn_pre_nms_topk_test",
            "rpn_post_nms_topk_test",
            "score_threshold",
            "nms_threshold",
            "detections_per_image",
        }
    )

    short_edge: int | None = Field(
        None,
        ge=64,
        le=8192,
        description="Resize each image so that its shorter side has this many pixels, such as 800 "
        "for COCO.\nnull: use scale.",
    )
    train_short_edges: tuple[Edge, ...] | None = Field(
        None,
        min_length=1,
        description="With short_edge: in training, one of these lengths of the shorter side at "
        "random, such as\n[640, 672, 704, 736, 768, 800]. null: short_edge.",
    )
    max_edge: int = Field(
        1333,
        ge=64,
        le=8192,
        description="With short_edge: the longer side has at most this many pixels.",
    )
    scale: float = Field(
        1,
        ge=0.05,
        le=20,
        description="Resize all images by this factor, so that their physical scale stays the "
        "same. For\nobjects of 10 to 20 pixels, 2.",
    )
    canvas: tuple[Side, Side] = Field(
        (512, 512),
        description="Height and width of the images in training, multiples of 32: larger ones are "
        "cropped at\nrandom, smaller ones padded.",
    )
    flips: Literal["all", "horizontal", "none"] = Field(
        "all",
        description="In training, at random: all (flip, and rotate by multiples of 90 degrees), "
        "horizontal (flip\nfrom left to right) or none.",
    )
    scale_jitter: float = Field(
        0,
        ge=0,
        le=0.9,
        description="In training, resize by a further random factor from 1 - scale_jitter to "
        "1 + scale_jitter.",
    )
    intensity: float = Field(
        0,
        ge=0,
        le=0.9,
        description="In training, change brightness, contrast and colour at random by up to this "
        "share.",
    )
    frozen_stages: int = Field(
        0,
        ge=0,
        le=5,
        description="Stages of the backbone that are not trained: 2 is usual with pretrained "
        "weights.",
    )
    anchor_sizes: tuple[Positive, Positive, Positive, Positive, Positive] = Field(
        (32, 64, 128, 256, 512),
        description="Sides of the anchors of levels 2 to 6 of the pyramid, in pixels after "
        "resizing.",
    )
    anchor_ratios: tuple[Positive, ...] = Field(
        (0.5, 1, 2), min_length=1, description="Height divided by width of the anchors."
    )
    rpn_batch_size_per_image: int = Field(
        256, ge=1, le=100_000, description="Anchors per image in the loss, half of them matched."
    )
    roi_batch_size_per_image: int = Field(
        512, ge=4, le=100_000, description="Proposals per image in the loss, a quarter matched."
    )
    rpn_pre_nms_topk_train: int = Field(
        2000,
        ge=1,
        le=100_000,
        description="Boxes per level before non-maximum suppression, in training.",
    )
    rpn_post_nms_topk_train: int = Field(
        1000, ge=1, le=100_000, description="Proposals per image, in training."
    )
    rpn_pre_nms_topk_test: int = Field(
        1000, ge=1, le=100_000, description="As rpn_pre_nms_topk_train, for detection."
    )
    rpn_post_nms_topk_test: int = Field(
        1000, ge=1, le=100_000, description="As rpn_post_nms_topk_train, for detection."
    )
    score_threshold: float = Field(0.05, ge=0, lt=1, description="Lowest score of a detection.")
    nms_threshold: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Detections that overlap more than this with a better one of their class are "
        "removed.",
    )
    detections_per_image: int = Field(
        100, ge=1, le=10_000, description="Most detections per image (COCO: 100)."
    )

    @model_validator(mode="after")
    def _edges_need_short_edge(self) -> "DetectionSettings":
        if self.train_short_edges is not None and self.short_edge is None:
            raise ValueError("train_short_edges: needs short_edge, the length for detection")
        return self

    @model_validator(mode="after")
    def _sides_are_multiples(self) -> "DetectionSettings":
        if any(side % STRIDE for side in self.canvas):
            raise ValueError(
                f"canvas: found {list(self.canvas)}; both sides must be multiples of {STRIDE}"
            )
        return self
