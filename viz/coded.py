"""query, key and value in a byte a number, for pages that would be large in half precision.

    step of a vector = its largest number / 100, as float16, rounded up
    code of a number = round(number / step), -100 to 100, as int8
    rest of a number = what the code leaves, in 16ths of the step, as four bits
    quarter of a number = the quarter of its step that it lies in, as two bits

So a number is at most half a step from the model's: half a hundredth of the largest number of its
vector; with the rest, a 16th of a step; with the quarter, whose middle it is taken for, an 8th.
The codes of a layer, and the steps before them, are deflated: they use 201 of 256 values, and not
evenly.
"""

import numpy as np
import numpy.typing as npt

from minibert.viz.inputs import Array
from minibert.viz.payload import Block, block_of, bytes_of

__all__ = ["STEPS", "Coded", "coded", "pack_coded", "pack_quarters", "pack_rest", "rests_of"]

# Codes on either side of zero.
STEPS = 100
_PARTS = 16
_QUARTERS = 4


class Coded:
    """Vectors, (..., position, d_head), as codes and steps."""

    steps: npt.NDArray[np.float16]
    """(..., position)."""
    codes: npt.NDArray[np.int8]
    rests: npt.NDArray[np.int8]
    """16ths of a step, -8 to 7."""
    quarters: npt.NDArray[np.int8]
    """-2 to 1: the lowest quarter of a step to the highest."""

    def __init__(self, vectors: Array) -> None:
        """Raise OverflowError where half precision has no number as large as a step."""
        largest = np.abs(vectors).max(-1) / STEPS
        with np.errstate(over="ignore"):
            steps = largest.astype(np.float16)
            self.steps = np.where(steps < largest, np.nextafter(steps, np.float16(np.inf)), steps)
        if not np.isfinite(self.steps).all():
            raise OverflowError("a vector is too large for steps in half precision")
        step = self._step
        safe = np.where(step > 0, step, 1)
        self.codes = np.rint(vectors / safe).astype(np.int8)
        left = (vectors - self.codes * step) / safe
        quarters = np.floor(left * _QUARTERS)
        self.quarters = np.clip(quarters, -_QUARTERS // 2, _QUARTERS // 2 - 1).astype(np.int8)
        self.rests = np.clip(np.rint(left * _PARTS), -_PARTS // 2, _PARTS // 2 - 1).astype(np.int8)

    @property
    def _step(self) -> npt.NDArray[np.float32]:
        return self.steps[..., None].astype(np.float32)

    @property
    def numbers(self) -> npt.NDArray[np.float32]:
        """What the codes say."""
        return self.codes * self._step

    @property
    def quartered(self) -> npt.NDArray[np.float32]:
        """What the codes say with the quarters."""
        quartered: npt.NDArray[np.float32] = (self.codes + _middles(self.quarters)) * self._step
        return quartered

    @property
    def finer(self) -> npt.NDArray[np.float32]:
        """What the codes say with the rests."""
        parts = self.codes * np.float32(_PARTS) + self.rests
        finer: npt.NDArray[np.float32] = (parts * (self._step / _PARTS)).astype(np.float32)
        return finer


def _middles(quarters: npt.NDArray[np.int8]) -> npt.NDArray[np.float32]:
    """The middle of each quarter, in steps."""
    middles: npt.NDArray[np.float32] = (quarters + np.float32(0.5)) / np.float32(_QUARTERS)
    return middles


def coded(vectors: Array) -> Coded | None:
    """The vectors as codes; None where they are too large for steps in half precision."""
    try:
        return Coded(vectors)
    except OverflowError:
        return None


def pack_coded(name: str, layer: int, vectors: Coded) -> Block:
    """query, key or value of one layer, (head, position, d_head): all steps, then all codes."""
    steps = np.ascontiguousarray(vectors.steps, "<f2").view(np.int8)
    return block_of(
        f"{name}-{layer}",
        np.concatenate([steps.ravel(), vectors.codes.ravel()]),
        quantity=name,
        layer=layer,
        shape=vectors.codes.shape,
        coding="steps",
    )


def pack_rest(name: str, layer: int, head: int, vectors: Coded, place: int) -> Block:
    """The rests of one head, (position, d_head), two in a byte, the first in its low half."""
    rests = vectors.rests[place]
    pairs = np.append(rests.ravel(), np.zeros(rests.size % 2, np.int8)).view(np.uint8) & 15
    return block_of(
        f"{name}-rest-{layer}-{head}",
        pairs[::2] | pairs[1::2] << 4,
        quantity=f"{name} rest",
        layer=layer,
        head=head,
        coding="steps",
        shape=rests.shape,
        packing="none",
    )


def pack_quarters(name: str, layer: int, head: int, vectors: Coded, place: int) -> Block:
    """The quarters of one head, (position, d_head), four in a byte, the first in its low bits."""
    quarters = vectors.quarters[place]
    padded = np.append(quarters.ravel(), np.zeros(-quarters.size % 4, np.int8)).view(np.uint8) & 3
    fours = padded.reshape(-1, 4) << np.arange(0, 8, 2, dtype=np.uint8)
    return block_of(
        f"{name}-rest-{layer}-{head}",
        np.bitwise_or.reduce(fours, 1),
        quantity=f"{name} rest",
        layer=layer,
        head=head,
        coding="quarters",
        shape=quarters.shape,
        packing="none",
    )


def rests_of(block: Block) -> npt.NDArray[np.float32]:
    """What `pack_rest` or `pack_quarters` packed, in steps, read back."""
    shape = block.entry["shape"]
    if block.entry["coding"] == "quarters":
        packed = np.frombuffer(bytes_of(block), np.uint8)[:, None]
        twos = (packed >> np.arange(0, 8, 2, dtype=np.uint8) & 3).ravel()[: int(np.prod(shape))]
        quarters = twos.astype(np.int8)
        return _middles(np.where(quarters < 2, quarters, quarters - 4)).reshape(shape)
    pairs = np.frombuffer(bytes_of(block), np.uint8)
    fours = np.stack([pairs & 15, pairs >> 4], 1).ravel()[: int(np.prod(shape))].astype(np.int8)
    signed = np.where(fours < _PARTS // 2, fours, fours - _PARTS)
    return signed.reshape(shape).astype(np.float32) / np.float32(_PARTS)
