import gc
import tracemalloc

from finite.bench import data
from finite.data import write
from finite.data.folder import read_folder


def test_each_format_is_measured_on_what_was_drawn():
    found = data.scaling(counts=(50, 100), large=100, pictures=5)
    assert set(found["formats"]) == {"voc", "coco", "yolo", "csv", "mindrecord"}
    for by_count in found["formats"].values():
        for count, figure in by_count.items():
            assert figure["objects"] == int(count) and figure["findings"] <= 1  # from what number pixels count
            assert 0 < figure["read"] < 20 and 0 <= figure["read_mb"] < 200
    assert found["decoded"] > 1
    assert len(data.lines(found)) == 5 * 2 + 2 and all(isinstance(text, str) for row in data.lines(found) for text in row)


def test_memory_grows_by_less_than_a_kilobyte_an_annotation_and_masks_cost_nothing(tmp_path):
    image_set = data.drawn_set(tmp_path, 4000)
    write.write_coco(image_set, tmp_path)
    path = tmp_path / "annotations" / "instances.json"
    text = path.read_text()
    mask = ", ".join(["12.5"] * 100)
    grown = {}
    for name, segmentation in (("plain", "[]"), ("masks", f"[[{mask}]]")):
        path.write_text(text.replace('"segmentation": []', f'"segmentation": {segmentation}'))
        gc.collect()  # what other tests left must not be freed in between
        tracemalloc.start()
        found = read_folder(tmp_path)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found.objects_total == 4000
        grown[name] = held / 4000
        assert (peak - 2 * path.stat().st_size) / 4000 < 1000  # the text itself, as bytes and decoded, comes in addition
    assert grown["plain"] < 700 and grown["masks"] < grown["plain"] + 300, grown  # a mask's hundred numbers would be 3,200 bytes
