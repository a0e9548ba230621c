"""A model of a brain with a tumour: the tissues at any position, and their intensities.

A head is a function of positions in millimetres, not of voxels, so it can be sampled on any grid.
The values are the same on every machine: they are computed with sums, products and square roots
only, since the last bit of sines and exponentials depends on the processor.
"""

import dataclasses

import numpy as np

from gigatile.demo.cases import LABELS, MODALITIES, DemoCase
from gigatile.demo.cohort import seed_of

# Intensity of each tissue in flair, t1, t1gd and t2, as radiologists know them: edema and water
# are bright in T2, FLAIR suppresses free water only, and contrast medium that leaks is bright in
# T1.
_INTENSITIES = {
    "white": (0.46, 0.76, 0.76, 0.42),
    "grey": (0.58, 0.56, 0.58, 0.60),
    "fluid": (0.14, 0.20, 0.20, 1.00),
    "vessel": (0.34, 0.52, 1.00, 0.22),
    "spot": (0.82, 0.60, 0.60, 0.70),  # a harmless lesion of the white matter
    "edema": (0.80, 0.58, 0.58, 0.72),
    "dead": (0.48, 0.30, 0.32, 0.92),  # the necrotic core of a tumour
    "solid": (0.74, 0.44, 0.46, 0.86),  # a tumour without contrast uptake
    "enhancing": (0.72, 0.50, 0.96, 0.66),
}
_REACH = 128.0  # mm from the centre of the head to the end of the lattices


class Hills:
    """Smooth noise in 3D, in about -1..1, with hills about `scale` mm wide."""

    def __init__(self, rng: np.random.Generator, scale: float) -> None:
        self._scale = scale
        self._side = int(2 * _REACH / scale) + 3
        self._lattice = rng.uniform(-1, 1, self._side**3)

    def sample(self, positions: np.ndarray) -> np.ndarray:
        """Return the height at positions (3, n) in mm: (n,) float64."""
        cells = np.clip((positions + _REACH) / self._scale, 0, self._side - 1.001)
        corner = cells.astype(np.int64)
        x, y, z = (cells - corner) ** 2 * (3 - 2 * (cells - corner))
        first = (corner[0] * self._side + corner[1]) * self._side + corner[2]

        def along_z(start: np.ndarray) -> np.ndarray:
            low = self._lattice[start]
            return low + z * (self._lattice[start + 1] - low)

        def along_y(start: np.ndarray) -> np.ndarray:
            low = along_z(start)
            return low + y * (along_z(start + self._side) - low)

        low = along_y(first)
        return low + x * (along_y(first + self._side**2) - low)


@dataclasses.dataclass(frozen=True)
class HeadSamples:
    """A head at n positions.

    Attributes:
        inside: (n,) bool, whether the position is in the brain.
        intensities: {modality: (n,) float64}, in about 0..1; 0 outside the brain.
        labels: (n,) uint8, values of `LABELS`; 0 outside the tumour.
    """

    inside: np.ndarray
    intensities: dict[str, np.ndarray]
    labels: np.ndarray


class Head:
    """The brain of a case's patient at the time of the examination."""

    def __init__(self, case: DemoCase) -> None:
        rng = np.random.default_rng(seed_of(f"gigatile demo, head of {case.patient}"))
        self._enhancing = case.enhancing
        self._half = np.array([69.0, 85.0, 62.0]) * rng.uniform(0.94, 1.05, 3)
        self._rotation = rotation_matrix(rng.uniform(-0.06, 0.06, 3))
        self._centre_offset = rng.uniform(-8, 8, 3)
        self._ventricle = np.array([7.0, 30.0, 9.0]) * rng.uniform(0.8, 1.4, 3)
        # Intensities vary between patients and scanner settings.
        variation = rng.uniform(-0.05, 0.05, (len(_INTENSITIES), len(MODALITIES)))
        values = np.array(list(_INTENSITIES.values())) + variation
        self._intensities = dict(zip(_INTENSITIES, values, strict=True))
        self._hills = {
            name: Hills(rng, scale)
            for name, scale in {
                "form": 48.0,
                "folds": 15.0,
                "texture": 8.0,
                "course": 26.0,
                "across": 26.0,
                "spots": 12.0,
                "edema": 24.0,
                "core": 15.0,
                "rim": 11.0,
            }.items()
        }
        self._spots = rng.uniform(0.45, 0.75)
        self._place_tumour(rng, case)

    def _place_tumour(self, rng: np.random.Generator, case: DemoCase) -> None:
        side = 1.0 if rng.random() < 0.5 else -1.0
        self._centre = rng.uniform((26, -42, -14), (40, 38, 28)) * (side, 1, 1)
        self._edema = rng.uniform(25, 36) * rng.uniform(0.85, 1.2, 3)
        self._core_centre = self._centre + rng.uniform(-4, 4, 3)
        self._core = rng.uniform(17, 24) * rng.uniform(0.85, 1.15, 3)
        self._rim = rng.uniform(0.60, 0.76)
        # The tumour has grown at the second examination.
        examination = int(case.case.partition("-")[2])
        self._edema = self._edema * (1 + 0.12 * (examination - 1))
        self._core = self._core * (1 + 0.18 * (examination - 1))

    def sample(self, positions: np.ndarray) -> HeadSamples:
        """Return the head at positions (3, n) in mm: to the right, to the front, upwards."""
        x, y, z = positions - self._centre_offset[:, None]
        own = np.stack([row[0] * x + row[1] * y + row[2] * z for row in self._rotation])
        radius = _length(own / self._half[:, None])
        radius += 0.05 * self._hills["form"].sample(own)
        # The underside is flatter than the top.
        radius += 0.12 * _ramp(own[2], -30, -70)
        inside = radius < 1

        brain, depth = own[:, inside], (1 - radius[inside]) * 70
        amounts = self._tissues(brain, depth)
        labels = np.zeros(len(radius), np.uint8)
        labels[inside] = self._labels(amounts)
        texture = 0.05 * self._hills["texture"].sample(brain)
        intensities = {}
        for number, modality in enumerate(MODALITIES):
            intensities[modality] = np.zeros(len(radius))
            mixed = self._intensities["white"][number] + texture
            for tissue, amount in amounts.items():
                mixed += amount * (self._intensities[tissue][number] + texture - mixed)
            intensities[modality][inside] = mixed
        return HeadSamples(inside, intensities, labels)

    def _tissues(self, own: np.ndarray, depth: np.ndarray) -> dict[str, np.ndarray]:
        """Return the opacity of each tissue over the previous ones, 0..1: {tissue: (n,)}.

        The positions (3, n) and their `depth` (n,) below the brain's surface are in mm.
        """
        hills = {name: hills.sample(own) for name, hills in self._hills.items()}
        x = np.abs(own[0])
        # Sulci are sheets that start at the surface; grey matter covers both.
        sheet = np.abs(hills["folds"])
        deep = _ramp(depth, 34, 26)
        between = _ramp(x, 4, 1) * deep  # the two hemispheres
        gyri = _ramp(x, 9, 5) * deep  # and the cortex on either side
        sulcus = _ramp(sheet, 0.20, 0.02) * _ramp(depth, 18, 11)
        ribbon = _ramp(sheet, 0.42, 0.24) * _ramp(depth, 25, 17)
        nuclei = _blob(np.stack([x - 23, own[1] - 4, own[2] - 2]), np.array([9.0, 17.0, 11.0]))
        grey = np.maximum.reduce([_ramp(depth, 10, 5), ribbon, gyri, nuclei])
        ventricles = _blob(
            np.stack([x - 11 - 0.15 * np.abs(own[1]), own[1] + 6, own[2] - 10]), self._ventricle
        )
        fluid = np.maximum.reduce([_ramp(depth, 2.5, 0), sulcus, between, ventricles])
        # The sinus between the hemispheres at the top, and other vessels.
        sinus = _ramp(x, 5, 2) * _ramp(depth, 7, 4) * _ramp(own[2], 5, 15)
        course = np.maximum(np.abs(hills["course"]), np.abs(hills["across"]))
        vessel = np.maximum(sinus, _ramp(course, 0.10, 0.04) * _ramp(depth, 40, 30))
        spot = _ramp(hills["spots"], self._spots, self._spots + 0.1) * (1 - grey) * (1 - fluid)

        away = _length((own - self._centre[:, None]) / self._edema[:, None])
        # The edema spreads along the white matter and ends at the fluid.
        away += 0.42 * hills["edema"] + 0.12 * hills["folds"] + 0.22 * grey + 0.8 * fluid
        core = _length((own - self._core_centre[:, None]) / self._core[:, None])
        core += 0.35 * hills["core"]
        tumour = {"edema": _ramp(away, 1.09, 0.91)}
        if self._enhancing:
            shell = _ramp(core + 0.45 * hills["rim"], self._rim - 0.1, self._rim + 0.1)
            tumour["dead"] = _ramp(core, 1.1, 0.9)
            tumour["enhancing"] = tumour["dead"] * shell
        else:
            tumour["solid"] = _ramp(core, 1.12, 0.88)
        harmless = {"grey": grey, "spot": spot, "fluid": fluid, "vessel": vessel}
        return {**harmless, **tumour}

    def _labels(self, amounts: dict[str, np.ndarray]) -> np.ndarray:
        """Return the labels (n,) uint8 of the predominant tissues."""
        core = amounts["dead" if self._enhancing else "solid"]
        labels = np.where(amounts["edema"] > 0.5, LABELS["edema"], 0)
        labels[core > 0.5] = LABELS["non_enhancing"]
        if self._enhancing:
            labels[amounts["enhancing"] > 0.5] = LABELS["enhancing"]
        return labels.astype(np.uint8)


def rotation_matrix(half_tangents: np.ndarray) -> np.ndarray:
    """Return a rotation (3, 3), given the tangents (3,) of half the angle about each axis."""
    b, c, d = half_tangents
    # From the quaternion (1, b, c, d): without sines, so the same on every machine.
    rows = [
        [1 + b * b - c * c - d * d, 2 * (b * c - d), 2 * (b * d + c)],
        [2 * (b * c + d), 1 - b * b + c * c - d * d, 2 * (c * d - b)],
        [2 * (b * d - c), 2 * (c * d + b), 1 - b * b - c * c + d * d],
    ]
    return np.array(rows) / (1 + b * b + c * c + d * d)


def _length(vectors: np.ndarray) -> np.ndarray:
    x, y, z = vectors
    return np.sqrt(x * x + y * y + z * z)


def _ramp(values: np.ndarray, zero: float, end: float) -> np.ndarray:
    """Return 0 where `values` is `zero`, 1 where it is `one`, linear between and clipped beyond."""
    return np.clip((values - zero) / (end - zero), 0, 1)


def _blob(away: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return 1 inside an ellipsoid, 0 outside, with a soft border; `away` (3, n) in mm."""
    return _ramp(_length(away / half[:, None]), 1.15, 0.85)
