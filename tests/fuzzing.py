"""Damaged annotation files for the readers' fuzz tests: valid ones, cut, spliced and sprinkled with what breaks
parsers.

A pure function of a random.Random, so that a failure is repeated by its seed.
"""

import copy
import json
import random

NASTY = [
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xfe\xff",
    b"\x80",
    b"\xc3\x28",
    b"nan",
    b"inf",
    b"-1",
    b"1e400",
    b"1e30",
    b"9" * 400,
    b"0x10",
    b"1_0",
    b"",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\r\n",
    b",",
    b";",
    b"|",
    b'"',
    b"'",
    b"\\",
    b"/",
    b"../../etc/passwd",
    b"&",
    b"&lt;",
    b"&a;",
    b"<",
    b">",
    b"</object>",
    b"<object>",
    b"<bndbox>",
    b"<!DOCTYPE a [<!ENTITY a 'x'>]>",
    b"<![CDATA[",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"null",
    b"true",
    b"NaN",
    b"Infinity",
    b"*",
    b"&x [",
    b"!!python/object/apply:os.system",
    b"? ",
    b"- ",
    b"%00",
    b"\xe2\x80\xae",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"a.jpg",
    b"b.png",
    b"images",
    b"-0",
    b".",
    b"1.",
    b".5",
    b"1e-400",
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    10**30,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "1",
    "a.jpg",
    "../a.jpg",
    "/a.jpg",
    [],
    {},
    [1],
    [[1]],
    {"id": 1},
    "x" * 300,
    [1, 2, 3, 4],
    ["1", "2", "3", "4"],
    [None] * 4,
    [1e308, 1e308, 1e308, 1e308],
    "\ud800",
    "\0",
]

VOC = (
    b"<annotation><filename>a.jpg</filename><size><width>40</width><height>30</height></size><object><name>cat</name>"
    b"<difficult>0</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>20</xmax><ymax>21</ymax></bndbox></object>"
    b"<object><name>dog</name><bndbox><xmin>3</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
)
COCO = {
    "images": [{"id": 1, "file_name": "a.jpg", "width": 40, "height": 30}, {"id": 2, "file_name": "b.png"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 10, 11], "iscrowd": 0},
        {"id": 2, "image_id": 2, "category_id": 3, "bbox": [1, 2, 10, 11], "segmentation": []},
    ],
    "categories": [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}],
}
YOLO = b"0 0.5 0.5 0.2 0.2\n1 0.25 0.5 0.1 0.2 0.3 0.4\n"
YAML = b"path: .\ntrain: images\nval: [a.txt, images/val]\nnames:\n  0: cat\n  1: dog\nkpt_shape: [2, 3]\n"
CSV = b'image,label,xmin,ymin,xmax,ymax,split\na.jpg,cat,1,2,10,11,train\n"b.png",dog,3,4,20,21,val\nb.png,,,,,\n'


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Up to six cuts, copies, insertions and changed bytes."""
    for _ in range(rng.randint(0, 6)):
        a, b = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        b = min(b, a + rng.choice((1, 3, 10, 60)))
        middle = rng.choice(
            (
                lambda: rng.choice(NASTY),
                lambda: b"",
                lambda: data[a:b] * rng.randint(2, 4),
                lambda: rng.randbytes(2),
                lambda: data[b : b + 20],
            )
        )()
        data = data[:a] + middle + data[b:]
    return data


def damaged_json(rng: random.Random) -> bytes:
    """A COCO document with values replaced, removed or repeated; sometimes damaged as text, too."""
    document = copy.deepcopy(COCO)
    for _ in range(rng.randint(0, 5)):
        parent, place = _some_place(document, rng)
        if place is None:
            continue
        act = rng.randint(0, 4)
        if act == 0:
            del parent[place]
        elif act == 1 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[place]))
        else:
            parent[place] = copy.deepcopy(rng.choice(VALUES))
    data = json.dumps(document).encode("utf-8", "surrogatepass")
    return damaged(data, rng) if rng.random() < 0.3 else data


def _some_place(document, rng: random.Random):
    parent, place = document, rng.choice(list(document)) if document else None
    while place is not None and isinstance(parent[place], (dict, list)) and parent[place] and rng.random() < 0.75:
        parent = parent[place]
        place = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    return parent, place


def files(kind: str, rng: random.Random) -> dict[str, bytes]:
    """Annotation files of a format, by relative path, for a folder that holds a.jpg and images/b.png."""
    if kind == "voc":
        listed = {"ImageSets/Main/train.txt": damaged(b"a\nb 1\n", rng)} if rng.random() < 0.3 else {}
        named = {"labelmap.txt": damaged(b"# label:::\ndog:1,2,3::\ncat:::\nemu:::\n", rng)} if rng.random() < 0.3 else {}
        return {"a.xml": damaged(VOC, rng), "images/b.xml": damaged(VOC, rng), **listed, **named}
    if kind == "coco":
        return {
            "instances_train.json": damaged_json(rng),
            **({"val.json": damaged_json(rng)} if rng.random() < 0.2 else {}),
        }
    if kind == "yolo":
        names = (
            {"data.yaml": damaged(YAML, rng)} if rng.random() < 0.6 else {"classes.txt": damaged(b"cat\ndog\n", rng)}
        )
        lists = {"train.txt": damaged(b"a.jpg\nimages/b.png\n", rng)} if rng.random() < 0.2 else {}
        return {"a.txt": damaged(YOLO, rng), "labels/b.txt": damaged(YOLO, rng), **names, **lists}
    return {
        "labels.csv": damaged(CSV, rng),
        **({"classes.csv": damaged(b"dog,7\ncat,3\nemu,9\n", rng)} if rng.random() < 0.3 else {}),
        **({"more.tsv": damaged(CSV.replace(b",", b"\t"), rng)} if rng.random() < 0.2 else {}),
    }
