"""GeoJSON as QuPath writes and reads it, damaged files, and exact rasterising of polygons."""

import copy
import gzip
import json
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.instances.geojson import (
    OutlinedObject,
    instance_id,
    rasterise,
    read_geojson,
    write_geojson,
)
from gigatile.instances.outlines import polygons_of

SQUARE = [[10, 20], [14, 20], [14, 26], [10, 26], [10, 20]]
HOLE = [[11, 21], [11, 23.5], [12.25, 23.5], [12.25, 21], [11, 21]]


def _feature(geometry=None, **properties) -> dict:
    """Return a Feature as QuPath 0.5 exports it."""
    return {
        "type": "Feature",
        "id": "6d4e9d3f-0a5a-4b58-8c40-0c5c9a3c1f11",
        "geometry": geometry or {"type": "Polygon", "coordinates": [SQUARE]},
        "properties": {"objectType": "annotation", **properties},
    }


def _read(folder, content, name="a.geojson") -> list[OutlinedObject]:
    (folder / name).write_text(json.dumps(content))
    return read_geojson(folder / name)


def _faults(folder, content) -> str:
    with pytest.raises(UserError) as error:
        _read(folder, content)
    return str(error.value)


# --- Writing


def _write(path, slide="slide", count=2) -> list[str]:
    mask = np.ones((3, 4), bool)
    mask[1, 1:3] = False
    with write_geojson(path, slide) as writer:
        return [
            writer.add(
                [[ring * 2.5 + 0.123 for ring in rings] for rings in polygons],
                "Tumour µ",
                (200, 0, 10),
                {"score": 0.5, "Area µm²": 12.0, "unknown": None, "undefined": float("nan")},
            )
            for polygons in [polygons_of(mask), polygons_of(np.eye(2))][:count]
        ]


def test_detections_are_written_as_qupath_reads_them(tmp_path):
    ids = _write(tmp_path / "a.geojson")
    content = json.loads((tmp_path / "a.geojson").read_text())
    assert content["type"] == "FeatureCollection"
    first, second = content["features"]
    assert first["type"] == "Feature"
    assert first["id"] == ids[0] == str(uuid.UUID(ids[0]))
    assert first["properties"] == {
        "objectType": "detection",
        "classification": {"name": "Tumour µ", "color": [200, 0, 10]},
        "measurements": {"score": 0.5, "Area µm²": 12.0},
    }
    assert first["geometry"]["type"] == "Polygon"
    outer, hole = first["geometry"]["coordinates"]
    assert outer[0] == outer[-1] and hole[0] == hole[-1]
    assert sorted(outer[:-1]) == [[0.12, 0.12], [0.12, 7.62], [10.12, 0.12], [10.12, 7.62]]
    assert second["geometry"]["type"] == "MultiPolygon"
    assert [len(rings) for rings in second["geometry"]["coordinates"]] == [1, 1]


def test_written_detections_can_be_read(tmp_path):
    for name in ("a.geojson", "a.geojson.gz"):
        _write(tmp_path / name)
        first, second = read_geojson(tmp_path / name)
        assert (first.name, first.kind, first.nucleus) == ("Tumour µ", "detection", [])
        assert [len(rings) for rings in first.polygons] == [2]
        assert len(second.polygons) == 2
    assert (tmp_path / "a.geojson.gz").read_bytes()[:2] == b"\x1f\x8b"


@pytest.mark.parametrize("name", ["a.geojson", "a.geojson.gz"])
def test_equal_detections_give_equal_bytes(tmp_path, name):
    for folder in ("a", "b"):
        _write(tmp_path / folder / name)
    assert sha256_of(tmp_path / "a" / name) == sha256_of(tmp_path / "b" / name)
    if name.endswith(".gz"):
        # No flags, so no name, and no time.
        assert (tmp_path / "a" / name).read_bytes()[3:8] == bytes(5)


def test_ids_depend_on_the_slide_and_the_index_only(tmp_path):
    first = _write(tmp_path / "a.geojson")
    assert _write(tmp_path / "b.geojson", count=1) == first[:1]
    assert first == [instance_id("slide", index) for index in range(2)]
    assert len({*first, *_write(tmp_path / "c.geojson", slide="other")}) == 4


def test_whole_coordinates_are_written_without_decimals(tmp_path):
    with write_geojson(tmp_path / "a.geojson", "s") as writer:
        writer.add([[np.array([[0, 0], [0, 2.0], [2.001, 2]])]], "a", (0, 0, 0), {})
    assert "[[0,0],[0,2],[2,2],[0,0]]" in (tmp_path / "a.geojson").read_text()


def test_a_file_without_detections_is_valid(tmp_path):
    _write(tmp_path / "a.geojson", count=0)
    assert read_geojson(tmp_path / "a.geojson") == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), write_geojson(tmp_path / "a.geojson", "s") as writer:
        writer.add([[np.array(SQUARE, float)]], "a", (0, 0, 0), {})
        raise RuntimeError("stopped")
    assert list(tmp_path.iterdir()) == []


def test_detections_are_not_kept_in_memory(tmp_path):
    with write_geojson(tmp_path / "a.geojson", "s") as writer:
        for _ in range(2000):
            writer.add([[np.array(SQUARE, float)]], "a", (0, 0, 0), {})
        (temporary,) = tmp_path.iterdir()
        assert temporary.stat().st_size > 300_000


# --- Reading


@pytest.mark.parametrize(
    "wrap",
    [lambda f: {"type": "FeatureCollection", "features": [f]}, lambda f: [f], lambda f: f],
    ids=["collection", "list", "feature"],
)
def test_the_three_forms_of_exported_files_are_read(tmp_path, wrap):
    geometry = {"type": "Polygon", "coordinates": [SQUARE, HOLE]}
    feature = _feature(geometry, classification={"name": "Tumor", "color": [200, 0, 0]})
    (item,) = _read(tmp_path, wrap(feature))
    assert (item.name, item.kind) == ("Tumor", "annotation")
    ((outer, hole),) = item.polygons
    assert outer.tolist() == SQUARE[:-1]
    assert hole.tolist() == HOLE[:-1]
    assert outer.dtype == np.float64
    path = tmp_path / "b.geojson.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(wrap(feature)).encode()))
    assert len(read_geojson(path)) == 1


@pytest.mark.parametrize(
    ("properties", "name", "kind"),
    [
        ({}, None, "annotation"),
        ({"classification": None}, None, "annotation"),
        ({"classification": {}}, None, "annotation"),
        ({"classification": "Stroma"}, "Stroma", "annotation"),
        ({"classification": {"names": ["Tumor", "Positive"]}}, "Tumor: Positive", "annotation"),
        ({"classification": {"name": "A", "colorRGB": -377282}}, "A", "annotation"),
        ({"objectType": "detection", "classification": {"name": "A"}}, "A", "detection"),
        ({"objectType": "cell", "measurements": {"x": 1}}, None, "cell"),
        ({"objectType": None, "object_type": "detection"}, None, "detection"),
        ({"objectType": "nucleus"}, "nucleus", "annotation"),
        ({"objectType": "nucleus", "classification": "A"}, "A", "annotation"),
    ],
)
def test_class_and_kind(tmp_path, properties, name, kind):
    (item,) = _read(tmp_path, [_feature(**properties)])
    assert (item.name, item.kind) == (name, kind)


def test_cells_have_a_nucleus(tmp_path):
    feature = _feature(objectType="cell")
    feature["nucleusGeometry"] = {"type": "Polygon", "coordinates": [HOLE]}
    (item,) = _read(tmp_path, [feature])
    assert item.polygons[0][0].tolist() == SQUARE[:-1]
    assert item.nucleus[0][0].tolist() == HOLE[:-1]


def test_children_are_read_and_parts_of_the_slide_are_skipped(tmp_path):
    core = _feature(objectType="tmaCore", childObjects=[_feature(classification="in core")])
    root = {"type": "Feature", "geometry": None, "properties": {"objectType": "root"}}
    parent = _feature(
        classification="parent", childObjects=[_feature(classification="child"), core]
    )
    old = {**_feature(classification="old"), "id": "PathDetectionObject"}
    del old["properties"]["objectType"]
    items = _read(tmp_path, [root, parent, old])
    assert [item.name for item in items] == ["parent", "child", "in core", "old"]
    assert items[-1].kind == "detection"


def test_open_rings_multipolygons_and_heights_are_read(tmp_path):
    geometry = {"type": "MultiPolygon", "coordinates": [[SQUARE[:-1]], [SQUARE, HOLE]]}
    (item,) = _read(tmp_path, [_feature(geometry)])
    assert [len(rings) for rings in item.polygons] == [1, 2]
    assert item.polygons[0][0].tolist() == item.polygons[1][0].tolist() == SQUARE[:-1]
    solid = {"type": "Polygon", "coordinates": [[[*point, 5] for point in SQUARE]]}
    (item,) = _read(tmp_path, [_feature(solid)])
    assert item.polygons[0][0].tolist() == SQUARE[:-1]


def _with(points) -> dict:
    return _feature({"type": "Polygon", "coordinates": [points]})


@pytest.mark.parametrize(
    ("feature", "fault"),
    [
        (_feature({"type": "Point", "coordinates": [1, 2]}), "geometry is 'Point', which has no"),
        (_feature({"type": "LineString", "coordinates": SQUARE}), "must be a Polygon or"),
        (_feature({"type": "GeometryCollection", "geometries": []}), "is 'GeometryCollection'"),
        (_feature({"type": ["Polygon"], "coordinates": [SQUARE]}), "geometry is 'list'"),
        (_feature({"type": "Polygon"}), "a polygon of its geometry has no rings"),
        (_feature({"type": "Polygon", "coordinates": []}), "has no rings"),
        (_feature({"type": "MultiPolygon", "coordinates": []}), "has no coordinates"),
        (_feature({"type": "Polygon", "coordinates": [5]}), "is not a list of points"),
        (_with(SQUARE[:2]), "less than three different points"),
        (_with([SQUARE[0], SQUARE[1], SQUARE[0], SQUARE[1]]), "less than three different points"),
        (_with([]), "less than three different points"),
        (_with([*SQUARE, [1]]), "does not have x and y"),
        (_with([*SQUARE, ["1", 2]]), "is not a number"),
        (_with([*SQUARE, [True, 2]]), "is not a number"),
        (_with([*SQUARE, [float("nan"), 2]]), "is not a number"),
        (_with([*SQUARE, [1, float("inf")]]), "is 'inf'; no slide has more than 10000000 pixels"),
        (_with([*SQUARE, [1, -1e300]]), "is '-1e+300'"),
        (_with([*SQUARE, [1, 10**400]]), "is 'a huge number'"),
        (_feature(classification={"name": 5}), "classification is not text"),
        (_feature(classification="\ud800"), "classification is not text"),
        (_feature(objectType=5), "objectType is not text"),
        ({**_feature(), "geometry": None}, "has no geometry"),
        ({**_feature(), "properties": []}, "properties are not an object"),
        ({**_feature(), "nucleusGeometry": {"type": "Point"}}, "nucleusGeometry is 'Point'"),
        (5, "is not a Feature"),
        ({"type": "Polygon", "coordinates": [SQUARE]}, "is not a Feature"),
    ],
)
def test_faults_are_reported_with_their_feature(tmp_path, feature, fault):
    message = _faults(tmp_path, [_feature(), feature, _feature()])
    assert message.startswith(f"{tmp_path}/a.geojson: objects that cannot be used:\n")
    (line,) = message.splitlines()[1:]
    assert line.startswith("  - feature 2")
    assert fault in line


def test_all_faults_are_reported_at_once(tmp_path):
    child = _with([[1, 2]])
    features = [_with([]), _feature(childObjects=[_feature(), child]), _feature({"type": "Point"})]
    lines = _faults(tmp_path, features).splitlines()[1:]
    assert [line.split(" (id")[0] for line in lines] == [
        "  - feature 1",
        "  - feature 2, child 2",
        "  - feature 3",
    ]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe\xff", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "not valid JSON"),
        (b"5", "not GeoJSON of objects"),
        (b'{"type": "FeatureCollection"}', "not GeoJSON of objects"),
        (b'{"type": "FeatureCollection", "features": {}}', "not GeoJSON of objects"),
    ],
)
def test_other_files_are_refused(tmp_path, data, fault):
    path = tmp_path / "a.geojson"
    path.write_bytes(data)
    with pytest.raises(UserError, match=fault):
        read_geojson(path)
    packed = tmp_path / "a.geojson.gz"
    packed.write_bytes(gzip.compress(data))
    with pytest.raises(UserError, match=fault):
        read_geojson(packed)


def test_damaged_and_missing_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_geojson(tmp_path / "a.geojson")
    packed = gzip.compress(json.dumps([_feature()] * 9).encode())
    for data in (packed[:-9], b"[]", packed[:20] + b"\0\0\0\0" + packed[24:], b""):
        (tmp_path / "a.gz").write_bytes(data)
        if data:
            with pytest.raises(UserError, match="not a whole gzip file"):
                read_geojson(tmp_path / "a.gz")
        else:
            with pytest.raises(UserError):
                read_geojson(tmp_path / "a.gz")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["Polygon", "MultiPolygon", "cell", "Feature", "root"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "name", "names", "coordinates", "geometry", "childObjects"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def _paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from _paths(inner, (*path, key))


EXPORT = {
    "type": "FeatureCollection",
    "features": [
        _feature({"type": "Polygon", "coordinates": [SQUARE, HOLE]}, classification={"name": "A"}),
        {
            **_feature(
                {"type": "MultiPolygon", "coordinates": [[SQUARE], [SQUARE]]},
                objectType="cell",
                childObjects=[_feature()],
            ),
            "nucleusGeometry": {"type": "Polygon", "coordinates": [HOLE]},
        },
    ],
}
PATHS = list(_paths(EXPORT))


SIMPLE = [None, True, 5, -1.5, 1e999, "", "Polygon", [], [[]], [5], [None, None], {}, {"type": 5}]


def _check_damaged(folder, changes) -> None:
    """Check that an export with these changes is read, or has faults."""
    content = copy.deepcopy(EXPORT)
    for path, value in changes:
        try:
            target = content
            for key in path[:-1]:
                target = target[key]
            if path:
                target[path[-1]] = value
            else:
                content = value
        except (TypeError, KeyError, IndexError, AttributeError):
            continue
    try:
        objects = _read(folder, content, "damaged.geojson")
    except UserError as error:
        str(error).encode()
        return
    for item in objects:
        assert item.kind in ("annotation", "detection", "cell")
        assert item.name is None or item.name.encode()
        mask, _ = rasterise(item.polygons, 30, 30)
        assert mask.dtype == bool


def test_each_value_of_each_wrong_type_is_a_fault_or_readable(tmp_path):
    for path in PATHS:
        for value in SIMPLE:
            _check_damaged(tmp_path, [(path, value)])


@given(st.lists(st.tuples(st.sampled_from(PATHS), values), min_size=1, max_size=3))
@settings(max_examples=200)
def test_any_damage_is_a_fault_or_readable(tmp_path_factory, changes):
    _check_damaged(tmp_path_factory.getbasetemp(), changes)


def test_any_change_of_bytes_is_a_fault_or_readable(tmp_path):
    random = np.random.default_rng(1)
    path, data = tmp_path / "a.geojson", json.dumps(EXPORT).encode()
    for _ in range(400):
        changed = bytearray(data)
        for position in random.integers(len(data), size=random.integers(1, 4)).tolist():
            match random.integers(3):
                case 0:
                    changed[position] = int(random.choice(list(b'{}[]",:0x9e-\xff')))
                case 1:
                    del changed[position : position + int(random.integers(1, 20))]
                case 2:
                    changed[position:position] = data[position : position + 15]
            changed = changed or bytearray(b" " * len(data))
            changed += b" " * (len(data) - len(changed))
        path.write_bytes(changed)
        try:
            read_geojson(path)
        except UserError as error:
            str(error).encode()


# --- Rasterising


def _plain(polygons, height: int, width: int) -> np.ndarray:
    """Return the mask of polygons by the definition, slowly."""
    mask = np.zeros((height, width), bool)
    for row in range(height):
        for column in range(width):
            x, y = column + 0.5, row + 0.5
            for polygon in polygons:
                crossings = 0
                for ring in polygon:
                    for (x1, y1), (x2, y2) in zip(ring, [*ring[1:], ring[0]], strict=True):
                        if (y1 <= y) != (y2 <= y):
                            crossings += x1 + (y - y1) * (x2 - x1) / (y2 - y1) <= x
                mask[row, column] |= crossings % 2 == 1
    return mask


def _in_image(polygons, height: int, width: int) -> np.ndarray:
    arrays = [[np.array(ring, float) for ring in polygon] for polygon in polygons]
    crop, (top, left) = rasterise(arrays, height, width)
    image = np.zeros((height, width), bool)
    image[top : top + crop.shape[0], left : left + crop.shape[1]] = crop
    assert crop.size == 0 or (
        crop[0].any() and crop[-1].any() and crop[:, 0].any() and crop[:, -1].any()
    )
    return image


quarters = st.integers(-20, 64).map(lambda number: number / 4)
rings = st.lists(st.tuples(quarters, quarters), min_size=3, max_size=7)


@given(st.lists(st.lists(rings, min_size=1, max_size=3), min_size=1, max_size=2))
@settings(max_examples=300)
def test_a_pixel_is_inside_if_its_centre_is(polygons):
    assert (_in_image(polygons, 9, 12) == _plain(polygons, 9, 12)).all()


def test_rings_that_cross_or_touch_themselves_are_even_odd():
    # An hourglass, and a square that is run through twice.
    hourglass = [[(0, 0), (8, 8), (8, 0), (0, 8)]]
    assert _in_image([hourglass], 8, 8).sum() == _plain([hourglass], 8, 8).sum() == 32
    assert not _in_image([[[(0, 0), (8, 0), (8, 8), (0, 8)] * 2]], 8, 8).any()
    square = [[(0, 0), (8, 0), (8, 8), (0, 8)]]
    assert _in_image([square, square], 8, 8).all()


def test_a_hole_is_outside_and_shared_edges_belong_to_one_polygon():
    random = np.random.default_rng(0)
    for _ in range(50):
        corners = [(0.0, 0.0), (30.0, 0.0), (30.0, 30.0), (0.0, 30.0)]
        middle = tuple(random.uniform(0, 30, 2) if random.random() < 0.5 else (14.5, 14.5))
        triangles = [[[corners[k], corners[(k + 1) % 4], middle]] for k in range(4)]
        assert (sum(_in_image([t], 30, 30).astype(int) for t in triangles) == 1).all()
    image = _in_image([[corners, [(10, 10), (10, 20), (20, 20), (20, 10)]]], 30, 30)
    assert not image[10:20, 10:20].any()
    assert image.sum() == 800


def test_polygons_far_outside_take_no_memory():
    huge = [[(-1e7, -1e7), (1e7, -1e7), (1e7, 1e7), (-1e7, 1e7)]]
    assert _in_image([huge], 5, 7).all()
    assert not _in_image([[[(1e6, 1e6), (1e7, 1e6), (1e7, 1e7)]]], 5, 7).any()
    assert rasterise([[np.array([[1.6, 1.6], [2.4, 1.6], [2.4, 2.4]])]], 5, 7)[0].shape == (0, 0)


def test_many_edges_are_processed_in_parts(monkeypatch):
    angles = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    radius = np.where(np.arange(400) % 2, 100, 60)
    star = np.stack([110 + radius * np.cos(angles), 110 + radius * np.sin(angles)], axis=1)
    expected, corner = rasterise([[star]], 220, 220)
    monkeypatch.setattr("gigatile.instances.geojson._CROSSINGS", 37)
    mask, same_corner = rasterise([[star]], 220, 220)
    assert (mask == expected).all()
    assert corner == same_corner
