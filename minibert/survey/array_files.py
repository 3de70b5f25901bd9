"""Arrays that grow row by row in .npy files, and can be cut back to a number of rows.

The header has room for any number of rows, so that it is written anew in its place when the array
is complete (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
"""

import os
from io import BufferedRandom, BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ArrayFile", "close_file"]

_HEADER = 256


class ArrayFile:
    """An array in a file, which grows along its first axis.

    Opening creates the file, or cuts it to `rows`, from where it grows again. Raises OSError where
    it cannot be written or is shorter than that.
    """

    def __init__(
        self, path: Path, dtype: str, shape: tuple[int, ...], rows: int, *, extra: int = 0
    ) -> None:
        self.dtype, self.shape, self.extra = np.dtype(dtype).newbyteorder("<"), shape, extra
        self._row_bytes = self.dtype.itemsize * int(np.prod(shape))
        end = _HEADER + (rows + extra) * self._row_bytes
        if not rows:
            path.write_bytes(self._header(0) + bytes(extra * self._row_bytes))
        self._file = path.open("r+b")
        length = self._file.seek(0, os.SEEK_END)
        if length < end:
            self._file.close()
            raise OSError(f"{length} bytes long, {end} were written")
        self._file.truncate(end)
        self._file.seek(end)

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add rows: (row, *shape)."""
        self._file.write(np.ascontiguousarray(values, self.dtype).tobytes())

    def flush(self) -> None:
        """Have everything on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, rows: int) -> None:
        """Write the header of the complete array."""
        self._file.seek(0)
        self._file.write(self._header(rows + self.extra))
        self.flush()

    def close(self) -> None:
        """Close the file; what is not flushed may be lost, as on a full disk."""
        close_file(self._file)

    def _header(self, rows: int) -> bytes:
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": (rows, *self.shape)}
        start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
        return start + repr(about).encode().ljust(_HEADER - 11) + b"\n"


def close_file(file: BufferedWriter | BufferedRandom) -> None:
    """Close a file; what is not flushed may be lost, as on a full disk."""
    try:
        file.close()
    except OSError:
        # The rest of a buffer that the disk has no room for; closed it is in any case.
        file.raw.close()
