"""Stochastic rounding from float32 to bfloat16: up or down at random, so that the mean is the number itself.

    bits(y) = the upper 16 of (bits(x) + u),      u uniform over the integers of [0, 65536)

bfloat16 is the upper half of float32, so y is one of the two neighbours of x, the upper one with a probability equal to
the share of the way from the lower one. A step of training changes a weight by less than the 8 bits of bfloat16 can
show; rounded to the nearest it would never move, rounded like this it moves by the right amount on average.
"""

import math

import numpy as np
import torch
from torch import Tensor

_UPPER_HALF = -65_536
"""The upper 16 bits of an int32."""


class RandomBits:
    """Random numbers of 16 bits, a function of a seed and a position."""

    def __init__(self, seed: int, position: int, device: torch.device | str = "cpu") -> None:
        """Begins a sequence.

        Args:
            seed: Not negative, below 2^63.
            position: Not negative; where the numbers are used, for example the first row of a block.
            device: Where they are wanted; the numbers of a CPU differ from those of other devices.
        """
        self._device = torch.device(device)
        if self._device.type == "cpu":
            self._words = np.random.SFC64([seed, position])
        else:
            mixed = np.random.SeedSequence([seed, position]).generate_state(1, np.uint64)[0] >> 1
            self._generator = torch.Generator(self._device).manual_seed(int(mixed))

    def draw(self, shape: torch.Size) -> Tensor:
        """The next numbers of [0, 65536), int32."""
        if self._device.type != "cpu":
            return torch.randint(
                1 << 16, shape, dtype=torch.int32, device=self._device, generator=self._generator, requires_grad=False
            )
        count = shape.numel()
        # 64 random bits are four numbers; a draw of one generator takes a tenth of the time of torch's
        words = np.asarray(self._words.random_raw(-(-count // 4)))
        return torch.from_numpy(words.view(np.uint16)[:count].astype(np.int32)).view(shape)


def round_stochastically(values: Tensor, bits: RandomBits, out: Tensor) -> None:
    """Writes float32 `values` to `out` (bfloat16, the same shape, any device).

    Numbers that bfloat16 has, infinities and NaN stay what they are.
    """
    rounded = bits.draw(values.shape).add_(values.view(torch.int32)).bitwise_and_(_UPPER_HALF).view(torch.float32)
    # the sum shows whether any value is NaN, whose bits must not be counted on into those of a number
    if values.device.type != "cpu" or not math.isfinite(float(values.sum())):
        rounded = torch.where(values.isnan(), values, rounded)
    out.copy_(rounded)
