import random
import struct
import zlib

import numpy as np
import pytest
from fuzzing import damaged
from PIL import Image, ImageFile, ImageOps
from small_sets import picture, turned

from finite.data import images
from finite.data.images import ImageError, open_rgb, read_header
from finite.errors import UserError

GREY = np.tile(np.linspace(0, 255, 40, dtype=np.uint8), (30, 1))


def saved(path, pixels, mode=None, **options):
    Image.fromarray(pixels, mode).save(path, **options) if mode else Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_turns_pixels_and_size_alike(tmp_path, orientation):
    path = turned(tmp_path / "a.jpg", orientation)
    image = open_rgb(path)
    assert read_header(path).size == image.size == ((30, 40) if orientation >= 5 else (40, 30))
    with Image.open(path) as stored:
        assert np.array_equal(np.asarray(image), np.asarray(ImageOps.exif_transpose(stored)))


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_impossible_orientation_counts_as_upright(tmp_path, orientation):
    path = turned(tmp_path / "a.jpg", orientation)
    assert open_rgb(path).size == (40, 30) and read_header(path).written_orientation == orientation


def test_orientation_of_a_png_is_found_even_behind_the_pixels(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = picture(tmp_path / "a.png").read_bytes()
    block = exif.tobytes()[6:]
    chunk = struct.pack(">I", len(block)) + b"eXIf" + block + struct.pack(">I", zlib.crc32(b"eXIf" + block))
    (tmp_path / "a.png").write_bytes(data[:-12] + chunk + data[-12:])
    assert read_header(tmp_path / "a.png").size == (30, 40) == open_rgb(tmp_path / "a.png").size


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path):
    path = saved(tmp_path / "a.png", GREY.astype(np.uint16) * 257)
    assert np.abs(np.asarray(open_rgb(path), dtype=int)[..., 0] - GREY).max() <= 1


def test_eight_bit_values_in_sixteen_bits_stay_as_they_are(tmp_path):
    assert np.array_equal(np.asarray(open_rgb(saved(tmp_path / "a.png", GREY.astype(np.uint16))))[..., 0], GREY)


def test_float_pictures_are_taken_by_their_range(tmp_path):
    for scale in (1 / 255, 1.0, 257.0):
        path = saved(tmp_path / "a.tif", GREY.astype(np.float32) * scale)
        assert np.abs(np.asarray(open_rgb(path), dtype=int)[..., 0] - GREY).max() <= 1
    path = saved(tmp_path / "a.tif", np.where(GREY > 9, np.nan, 1).astype(np.float32))
    with pytest.raises(ImageError, match="not finite"):
        open_rgb(path)


def test_what_is_transparent_lies_on_white(tmp_path):
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[0] = (10, 20, 30, 255)
    found = np.asarray(open_rgb(saved(tmp_path / "a.png", pixels)))
    assert (found[0] == (10, 20, 30)).all() and (found[1:] == 255).all()


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("CMYK", "a.jpg"),
        ("L", "a.jpg"),
        ("1", "a.png"),
        ("P", "a.gif"),
        ("LA", "a.png"),
        ("YCbCr", "a.jpg"),
        ("LAB", "a.tif"),
        ("P", "a.png"),
    ],
)
def test_every_mode_becomes_rgb_of_the_same_brightness(tmp_path, mode, name):
    source = Image.new("RGB", (16, 16), (255, 255, 255) if mode == "1" else (180, 160, 140))
    lab = (
        images.ImageCms.profileToProfile(
            source, images.ImageCms.createProfile("sRGB"), images.ImageCms.createProfile("LAB"), outputMode="LAB"
        )
        if mode == "LAB"
        else None
    )
    (lab or source.convert(mode)).save(tmp_path / name)
    image = open_rgb(tmp_path / name)
    assert image.mode == "RGB" and abs(np.asarray(image).mean() - np.asarray(source).mean()) < 8


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    idat = b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + idat)
    with pytest.raises(ImageError) as caught:
        read_header(tmp_path / "a.png")
    assert caught.value.kind == "too_large"


def test_the_limit_holds_for_honest_large_pictures_too(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    loaded = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: loaded.append(self))
    with pytest.raises(ImageError, match="40 x 30 pixels, more than 1,000"):
        open_rgb(picture(tmp_path / "a.png"))
    assert loaded == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello", "not a picture"),
        (None, "no such file"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture"),
    ],
)
def test_what_is_no_picture_is_named_with_its_reason(tmp_path, content, reason):
    path = tmp_path / "a.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageError, match=reason) as caught:
        open_rgb(path)
    assert str(path) in str(caught.value) and isinstance(caught.value, UserError)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.webp", "a.tif"])
def test_a_truncated_picture_is_refused(tmp_path, name):
    path = picture(tmp_path / name, (200, 150))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ImageError):
        open_rgb(path)


def test_damaged_pictures_never_raise_anything_else(tmp_path):
    blobs = [
        turned(tmp_path / "a.jpg", 6).read_bytes(),
        *(
            picture(tmp_path / f"a.{end}").read_bytes()
            for end in ("png", "gif", "tif", "bmp", "webp", "ppm", "tga", "jp2")
        ),
    ]
    opened = 0
    for seed in range(600):
        rng = random.Random(seed)
        (tmp_path / "x.jpg").write_bytes(damaged(rng.choice(blobs), rng))
        try:
            opened += open_rgb(tmp_path / "x.jpg").mode == "RGB"
        except ImageError:
            continue
    assert opened > 100
