"""Pictures on the pages of vision models: which patch of the picture a position is.

Patches are taken to be the last positions, in reading order, behind class and register tokens: so
ViT, DeiT, CLIP, SigLIP and DINOv2 have them.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.text.tokens import Tokens

__all__ = ["Patches", "patches_of", "pictures_of"]

Pixels = npt.NDArray[np.uint8]
# Tokens in front of the patches: a class, a distillation token, registers.
_MOST_IN_FRONT = 16
# Of a picture's longer side: a page is passed on, and patches are some pixels wide.
_MOST_PIXELS = 768


@dataclass(frozen=True)
class Patches:
    """The grid of patches that a picture is cut into."""

    batch: int
    rows: int
    columns: int

    def in_front(self, n_positions: int) -> int:
        """How many positions stand before the patches.

        Raises TraceError where there are no such patches among the positions.
        """
        front = n_positions - self.rows * self.columns
        if not 0 <= front <= _MOST_IN_FRONT:
            raise TraceError(
                f"image=...: pixel_values have {self.rows} x {self.columns} patches, and the stack "
                f"has {n_positions} positions; expected a position for each patch, behind at most "
                f"{_MOST_IN_FRONT} others. Leave image out: the page has positions by number."
            )
        return front

    def tokens(self, n_positions: int) -> Tokens:
        """Positions by name: "row 2, column 5", and those in front."""
        front = self.in_front(n_positions)
        ids = torch.arange(n_positions).expand(self.batch, -1)
        return Tokens.from_ids(ids, tokenizer=_Names(front, self.columns))


class _Names:
    """Names of positions, as `Tokens` asks a tokenizer for them."""

    def __init__(self, front: int, columns: int) -> None:
        self.front, self.columns = front, columns
        self.structural_ids = frozenset(range(front))

    def raw(self, token_id: int) -> str:
        """The name."""
        if token_id < self.front:
            return f"[{token_id}]"
        row, column = divmod(token_id - self.front, self.columns)
        return f"row {row}, column {column}"

    def string(self, token_id: int) -> str:
        """The name."""
        return self.raw(token_id)


def patches_of(config: Any, pixels: Tensor | None) -> Patches | None:
    """The patches of pixel_values (batch, channel, height, width); None where they are not known.

    The size of a patch is the config's `patch_size`, or that of its `vision_config`.
    """
    if pixels is None or pixels.dim() != 4:
        return None
    for one in (config, getattr(config, "vision_config", None)):
        size = getattr(one, "patch_size", None)
        if isinstance(size, int):
            size = (size, size)
        if isinstance(size, Sequence) and len(size) == 2 and all(size):
            batch, _, height, width = pixels.shape
            return Patches(batch, height // size[0], width // size[1])
    return None


def pictures_of(images: Any, patches: Patches | None, n_positions: int) -> list[dict[str, Any]]:
    """For each picture what a page draws: the file, as a data address, and the grid over it.

    `images` is one picture, or a list with one for each of the batch: (height, width, 3) or
    (height, width) whole numbers from 0 to 255, as `numpy.asarray` gives them of a PIL image.

    Raises TraceError for something else, and where the patches are not known.
    """
    if patches is None:
        raise TraceError(
            "image=...: the model was given no pixel_values (batch, channel, height, width), or "
            "its config has no patch_size, so that its patches are not known. Leave image out."
        )
    given = images if isinstance(images, list | tuple) else [images]
    if len(given) != patches.batch:
        raise TraceError(f"image=...: {len(given)} given, and pixel_values have {patches.batch}.")
    front = patches.in_front(n_positions)
    grid = {"first": front, "rows": patches.rows, "columns": patches.columns}
    return [{"source": _source(_pixels(one)), **grid} for one in given]


def _pixels(image: Any) -> Pixels:
    pixels = np.asarray(image.cpu() if isinstance(image, Tensor) else image)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise TraceError(
            f"image=...: found {pixels.dtype} of shape {pixels.shape}; expected (height, width, 3) "
            'of uint8, as numpy.asarray(image.convert("RGB")) is of a PIL image.'
        )
    step = -(-max(pixels.shape) // _MOST_PIXELS)
    return np.ascontiguousarray(pixels[::step, ::step])


def _source(pixels: Pixels) -> str:
    """The picture as a PNG file (ISO/IEC 15948) in a data address."""
    height, width, _ = pixels.shape
    # Each row begins with the number of its filter: none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return "data:image/png;base64," + base64.b64encode(file).decode()
