"""Pictures as the program sees them: 8-bit RGB, upright, of a bounded size; or an ImageError that says why not.

The rules, the same for training, audit and prediction:
- EXIF orientation is applied; an impossible value counts as upright.
- A transparent picture is laid on white, as a browser shows it.
- 16-bit values are scaled by 65535 -> 255, unless none is above 255 (8-bit data in a 16-bit file: taken as they are).
- Float values are taken as 0..1, 0..255 or 0..65535, by the smallest of these ranges that holds them.
- Of several frames or pages the first one counts.
- More than MAX_PIXELS, by the header, is refused before anything is unpacked.
"""

import io
import logging
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageCms, UnidentifiedImageError

from finite.data.sample import Packed
from finite.errors import UserError

MAX_PIXELS = 100_000_000
SUFFIXES = frozenset(
    (
        ".jpg",
        ".jpeg",
        ".jfif",
        ".jpe",
        ".png",
        ".bmp",
        ".dib",
        ".gif",
        ".tif",
        ".tiff",
        ".webp",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".jp2",
        ".tga",
    )
)
#: The formats that may be opened, whatever a file is called: Pillow would hand an EPS file to an interpreter.
_FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", "TGA")
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Nor would its remarks on damaged files help: they name none, and the error that follows is reported with the file.
logging.getLogger("PIL").addHandler(logging.NullHandler())
# Our own limit is checked right after opening, when nothing is unpacked yet; Pillow's warning would come in addition.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# Remarks on odd TIFF tags help nobody: what matters of them, the reader reports itself.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class ImageError(UserError):
    """A picture that cannot be used. `kind` is unreadable_image or too_large, `reason` stands without the file name."""

    def __init__(self, path: Path | Packed | str, reason: str, kind: str = "unreadable_image"):
        super().__init__(f"{path}: {reason}")
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Header:
    """What a picture file says before it is decoded: size as stored, EXIF orientation as written, Pillow's mode."""

    stored_width: int
    stored_height: int
    written_orientation: int
    mode: str

    @property
    def orientation(self) -> int:
        """1 to 8; what is impossible counts as 1 (upright)."""
        return self.written_orientation if 1 <= self.written_orientation <= 8 else 1

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the upright picture."""
        if self.orientation >= 5:
            return self.stored_height, self.stored_width
        return self.stored_width, self.stored_height


def read_header(path: Path | Packed) -> Header:
    """Size, orientation and mode without decoding. Raises ImageError."""
    with _opened(path) as image:
        return _header(image, path)


def open_rgb(path: Path | Packed) -> Image.Image:
    """The picture decoded to the end as 8-bit RGB, upright (the module's rules). Raises ImageError."""
    return open_with_header(path)[0]


def open_with_header(path: Path | Packed) -> tuple[Image.Image, Header]:
    """`open_rgb` and `read_header` in one reading of the file."""
    with _opened(path) as image:
        header = _header(image, path)
        image.load()
        rgb = to_rgb(image, path)
    turn = _TURNS.get(header.orientation)
    return (rgb.transpose(turn) if turn is not None else rgb), header


def to_rgb(image: Image.Image, path: Path | Packed | str = "image") -> Image.Image:
    """A decoded picture of any Pillow mode as 8-bit RGB; `path` is for the message of the ImageError it may raise."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()
    if image.mode in ("F", "I") or image.mode.startswith("I;"):
        return Image.fromarray(_scaled(np.asarray(image), path)).convert("RGB")
    if image.mode == "LAB":
        srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        return ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _scaled(values: np.ndarray, path: Path | Packed | str) -> np.ndarray:
    """Grey values of more than 8 bits as uint8, by the module's rules."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ImageError(path, "holds values that are not finite")
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 65535:
        raise ImageError(path, f"holds values from {low:g} to {high:g}; 0 to 1, 255 or 65535 can be read")
    factor = 255.0 if values.dtype.kind == "f" and high <= 1 else 1.0 if high <= 255 else 1 / 257
    return np.rint(values * factor).astype(np.uint8)


@contextmanager
def _opened(path: Path | Packed) -> Iterator[Image.Image]:
    """An opened, not yet decoded picture within MAX_PIXELS; whatever a damaged file makes Pillow raise is
    ImageError."""
    try:
        with path.open("rb") as file, Image.open(file, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ImageError(
                    path, f"{width} x {height} pixels, more than {MAX_PIXELS:,}: not unpacked", "too_large"
                )
            yield image
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(path, f"more than {MAX_PIXELS:,} pixels: not unpacked", "too_large") from error
    except FileNotFoundError as error:
        raise ImageError(path, "no such file") from error
    except UnidentifiedImageError as error:
        reason = "is an empty file" if _is_empty(path) else "is not a picture of a known format"
        raise ImageError(path, reason) from error
    except MemoryError as error:
        raise ImageError(path, "does not fit into memory", "too_large") from error
    except (
        Exception
    ) as error:  # Pillow's plugins raise almost anything on damaged files: OSError, SyntaxError, struct.error
        raise ImageError(path, f"cannot be decoded: {error or type(error).__name__}") from error


def _is_empty(path: Path | Packed) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _header(image: Image.Image, path: Path | Packed) -> Header:
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(path, f"{width} x {height} pixels")
    return Header(width, height, _orientation(image, path), image.mode)


def _orientation(image: Image.Image, path: Path | Packed) -> int:
    """The EXIF orientation as written, 1 where there is none or the EXIF block is damaged."""
    try:
        if image.format == "PNG" and "exif" not in image.info:
            # Pillow would decode the whole picture to look for a late chunk; walking the chunk heads costs nothing.
            exif = Image.Exif()
            exif.load(_png_exif(path) or b"")
        else:
            exif = image.getexif()
        value = exif.get(_ORIENTATION, 1)
        return int(value) if isinstance(value, (int, float)) else 0
    except Exception:  # a damaged EXIF block must not cost the picture: Pillow raises struct.error, SyntaxError, ...
        return 1


def _png_exif(path: Path | Packed) -> bytes | None:
    """The eXIf chunk of a PNG file wherever it stands, None if there is none."""
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, name = struct.unpack(">I4s", head)
            if name == b"eXIf":
                return file.read(min(length, 1 << 20))
            file.seek(length + 4, io.SEEK_CUR)
    return None
