"""Render a demo slide: a piece of stained tissue on glass.

A slide has the same bytes on every machine. So pixels are computed with integers or by Pillow, and
sines and exponentials, whose last bit depends on the processor, are used through rounded tables.
"""

import dataclasses

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from gigatile.demo import patterns
from gigatile.demo.cohort import SITES, DemoSlide, seed_of
from gigatile.demo.section import GRAIN, Section, connective_tissue, fine_noise, noise

MPP = 0.5  # micrometres per px of level 0
OBJECTIVE_POWER = 20

_PATTERNS = {
    "luad": patterns.draw_adenocarcinoma,
    "lusc": patterns.draw_squamous_carcinoma,
    "normal": patterns.draw_normal_lung,
}
# The colour of glass, by scanner.
GLASS = {"north": (248.0, 247.0, 248.0), "south": (249.0, 248.0, 246.0)}
_INK = (0.16, 0.52, 0.30)  # transmittance of a green marker for red, green and blue
_INK_SCALE = 4  # downsample at which the mark is rendered, to soften its border


@dataclasses.dataclass(frozen=True)
class Stain:
    """The stains of a slide.

    `haematoxylin` and `eosin` are optical densities (natural logarithm) of red, green and blue per
    step of depth: the values of Ruifrok and Johnston (2001), varied between patients.
    """

    haematoxylin: np.ndarray  # (3,)
    eosin: np.ndarray  # (3,)

    def table(self, glass: tuple[float, float, float]) -> np.ndarray:
        """Return the colour of each pair of depths on glass: (256 * 256, 3) uint8 RGB.

        The row index is 256 times the depth of haematoxylin plus the depth of eosin.
        """
        depth = np.arange(256)[:, None]
        # Very deep eosin, as in red cells and keratin, is orange rather than pink.
        orange = np.clip(depth - 110, 0, None) * np.array([0.0, 0.0, 1.6]) * self.eosin[1]
        density = (depth * self.haematoxylin)[:, None] + (depth * self.eosin + orange)[None]
        return np.rint(np.array(glass) * np.exp(-density)).astype(np.uint8).reshape(-1, 3)


def stain_of(slide: DemoSlide) -> Stain:
    """Return the stain of a slide: the patient's stain with a small variation.

    It varies between patients and does not depend on the label.
    """
    rng = np.random.default_rng(seed_of(f"gigatile demo, patient {slide.patient}"))
    haematoxylin = (np.array([0.60, 0.72, 0.36]) + rng.uniform(-0.07, 0.07, 3)) / 100
    eosin = (np.array([0.10, 0.92, 0.26]) + rng.uniform(-0.06, 0.06, 3)) / 100
    batch = np.random.default_rng(seed_of(f"gigatile demo, batch of {slide.slide}"))
    strength = rng.uniform((0.75, 0.60), (1.25, 1.05)) * batch.uniform(0.96, 1.04, 2)
    if slide.site == SITES[1]:
        strength *= 1.06
    return Stain(haematoxylin * strength[0], eosin * strength[1])


def draw_slide(slide: DemoSlide) -> np.ndarray:
    """Render a slide at full resolution.

    Returns:
        (height, width, 3) uint8 RGB, about 2300 x 3000 px at `MPP`; the same on every call.
    """
    rng = np.random.default_rng(seed_of(f"gigatile demo, slide {slide.slide}"))
    shape = int(rng.integers(2200, 2401)), int(rng.integers(2850, 3151))
    edge, inside = draw_outline(rng, shape)
    if slide.oddity == "glass_only":
        edge, inside = np.zeros_like(edge), np.zeros_like(inside)
        section = Section(edge, edge, inside, inside.astype(np.float64))
    else:
        section = connective_tissue(rng, inside, shape)
        adjacent = _adjacent_lung(rng, slide, inside)
        if adjacent.any():
            patterns.draw_normal_lung(rng, dataclasses.replace(section, inside=adjacent))
        _PATTERNS[slide.label](rng, dataclasses.replace(section, inside=inside & ~adjacent))
        # Thickness and stain of a section vary.
        edge = _times(edge, 255 - (noise(rng, shape, 500) >> 2))
        for plane in (section.haematoxylin, section.eosin):
            plane[:] = _times(plane, edge)

    depths = section.haematoxylin.astype(np.uint16) << 8
    depths |= section.eosin
    pixels = np.take(stain_of(slide).table(GLASS[slide.site]), depths, axis=0)
    if slide.oddity == "pen_mark":
        draw_pen_mark(rng, pixels, inside)
    illumination = _illumination(rng, shape)
    for channel in range(3):
        pixels[..., channel] = _times(pixels[..., channel], illumination)
    return pixels


def draw_outline(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Render the outline of the tissue on a slide of `shape` (height, width) px.

    There are one to three pieces with ragged edges. They cover 38 to 48 % of the slide and do not
    touch its borders.

    Returns:
        The amount of tissue in each pixel (height, width) uint8, which fades over about 20 px, and
        the coarse mask of the tissue; see `Section.inside`.
    """
    coarse = (shape[0] // GRAIN + 1, shape[1] // GRAIN + 1)
    y, x = ((np.indices(coarse) + 0.5) / np.array(coarse)[:, None, None]).astype(np.float64)
    height = np.full(coarse, -np.inf)
    for _ in range(int(rng.integers(1, 4))):
        (middle_x, middle_y), (half_x, half_y) = rng.uniform((0.36, 0.2), (0.64, 0.38), (2, 2)).T
        away = np.sqrt(((x - middle_x) / half_x) ** 2 + ((y - middle_y) / half_y) ** 2)
        height = np.maximum(height, 1 - away)
    for scale, weight in ((45, 1.1), (18, 0.7), (6, 0.12)):
        height = height + weight * fine_noise(rng, coarse, scale).astype(np.float64)
    # Away from the borders, and rounder than the slide.
    outward = np.sqrt(np.sqrt((2 * x - 1) ** 4 + (2 * y - 1) ** 4))
    height = height - 3 * np.clip((outward - 0.6) / 0.35, 0, None) ** 2
    share = rng.uniform(0.38, 0.48)
    height = height - np.sort(height, axis=None)[int((1 - share) * height.size)]

    hill = Image.fromarray(np.clip(128 + height * 160, 0, 255).astype(np.uint8))
    # One cell of the map is GRAIN px; the last row and column may extend beyond the slide.
    size = (coarse[1] * GRAIN, coarse[0] * GRAIN)
    full = np.asarray(hill.resize(size, Image.Resampling.BICUBIC))[: shape[0], : shape[1]]
    ragged = full.astype(np.int16) + (noise(rng, shape, 30) >> 4)
    edge = np.clip((ragged - 136) * 20 + 128, 0, 255).astype(np.uint8)
    # A little larger than the tissue, so that the pattern reaches the ragged edge.
    return edge, height > -0.1


def _adjacent_lung(rng: np.random.Generator, slide: DemoSlide, inside: np.ndarray) -> np.ndarray:
    """Return the area of normal lung next to a tumour; half of the tumour slides have one.

    So not every tile has the class of its slide, and a heat map shows differences. Both masks are
    coarse; see `Section.inside`.
    """
    share = rng.uniform(0.10, 0.25)
    if slide.label == "normal" or rng.random() < 0.5:
        return np.zeros_like(inside)
    lie = fine_noise(rng, (inside.shape[0], inside.shape[1]), 60)
    return inside & (lie > np.sort(lie[inside])[int((1 - share) * inside.sum())])


def draw_pen_mark(rng: np.random.Generator, pixels: np.ndarray, inside: np.ndarray) -> None:
    """Draw a pathologist's ring around a point at the edge of the tissue.

    `pixels` (height, width, 3) uint8 is changed in place; see `Section` for `inside`.
    """
    height, width = pixels.shape[:2]
    rows, columns = np.nonzero(inside[:, :-1] & ~inside[:, 1:])
    chosen = int(rng.integers(len(rows)))
    middle = np.array([columns[chosen], rows[chosen]]) * GRAIN / _INK_SCALE
    turn = np.linspace(0.2, 2 * np.pi + 0.4, 80)  # slightly more than a full circle
    radius = np.array([430, 360]) / _INK_SCALE * (1 + 0.04 * (turn - np.pi))[:, None]
    line = middle + radius * np.stack([np.cos(turn), np.sin(turn)], axis=-1)

    mark = Image.new("L", (width // _INK_SCALE + 1, height // _INK_SCALE + 1))
    corners = np.rint(line).astype(np.int64).ravel().tolist()
    ImageDraw.Draw(mark).line(corners, fill=215, width=52 // _INK_SCALE, joint="curve")
    mark = mark.filter(ImageFilter.BoxBlur(1))
    size = (mark.width * _INK_SCALE, mark.height * _INK_SCALE)
    ink = np.array(mark.resize(size, Image.Resampling.BILINEAR))[:height, :width]
    ink -= _times(ink, noise(rng, (height, width), 40) >> 2)  # uneven ink
    covered = np.arange(256) / 255
    for channel, through in enumerate(_INK):
        passes = np.rint(255 * (1 - covered * (1 - through))).astype(np.uint8)
        pixels[..., channel] = _times(pixels[..., channel], passes[ink])


def _illumination(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return the illumination (height, width) uint8, with a slow falloff and noise."""
    slope = rng.integers(0, 12, (2, 2), dtype=np.uint8)
    falloff = np.asarray(Image.fromarray(slope).resize(shape[::-1], Image.Resampling.BILINEAR))
    grains = rng.integers(0, 4, (2, *shape), dtype=np.uint8)
    return 255 - falloff - grains[0] - grains[1]


def _times(plane: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return `plane` (height, width) uint8 times `by` (height, width) uint8, divided by 255."""
    product = plane.astype(np.uint16)
    product *= by
    product += 128
    # Rounded division by 255, exact for every product of two bytes.
    product += product >> 8
    return (product >> 8).astype(np.uint8)
