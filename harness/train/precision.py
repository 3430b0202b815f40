"""Which products are made in bfloat16; scores, losses and weights stay float32."""

import torch

from harness.train.settings import OptimSettings


def product_type(settings: OptimSettings, device: str) -> torch.dtype:
    """Type of the factors of large products: bfloat16 where the device is made for it or the settings ask for it."""
    wanted = settings.precision
    half = wanted == "bfloat16" or (wanted == "auto" and device.startswith("cuda"))
    return torch.bfloat16 if half else torch.float32


def autocast(settings: OptimSettings, device: str) -> torch.autocast:
    """A context in which encoder and heads compute with `product_type`."""
    half = product_type(settings, device) == torch.bfloat16
    return torch.autocast(device.partition(":")[0], dtype=torch.bfloat16, enabled=half)
