"""The images of a split, decoded once and kept in memory a little larger than the network's input, as far as there is room."""

import threading

from finite.data.images import open_rgb
from finite.data.letterbox import Reduced, reduce
from finite.data.sample import ImageRecord
from finite.errors import UserError


class KeptImages:
    """Images by number, for several threads. Whether one was kept changes the speed, never a number."""

    def __init__(self, size: int, room_mb: float) -> None:
        """`size` is the side of the network's input in px, `room_mb` the memory to fill."""
        self.size = size
        self._room = room_mb * 2**20
        self._kept: dict[int, Reduced] = {}
        self._lock = threading.Lock()

    def get(self, index: int, record: ImageRecord) -> Reduced:
        """Raises ImageError when it can't be read, UserError when it is not of the size that the annotations were read for."""
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        image = open_rgb(record.path)
        if image.size != (record.width, record.height):
            raise UserError(f"{record.path}: the image is {image.width} x {image.height} px, its annotations are for "
                            f"{record.width} x {record.height}; was it replaced?")  # fmt: skip
        reduced = reduce(image, self.size)
        with self._lock:
            if index not in self._kept and reduced.bytes <= self._room:
                self._room -= reduced.bytes
                self._kept[index] = reduced
        return reduced
