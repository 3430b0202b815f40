"""Memory by part and by moment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One thing that takes memory."""

    name: str
    device: float = 0.0
    """Bytes on the device."""
    host: float = 0.0
    """Bytes of the process."""


@dataclass(frozen=True)
class Phase:
    """One moment of a run, with everything that exists then."""

    name: str
    parts: tuple[Part, ...]

    @property
    def device(self) -> float:
        """Bytes on the device."""
        return sum(part.device for part in self.parts)

    @property
    def host(self) -> float:
        """Bytes of the process, without those on the device."""
        return sum(part.host for part in self.parts)

    @property
    def total(self) -> float:
        """Bytes of the process where the device is the CPU."""
        return self.device + self.host


def merged(parts: list[Part]) -> tuple[Part, ...]:
    """Parts of one name as one, without empty ones, in the order of their first mention."""
    sums: dict[str, tuple[float, float]] = {}
    for part in parts:
        device, host = sums.get(part.name, (0.0, 0.0))
        sums[part.name] = (device + part.device, host + part.host)
    return tuple(Part(name, *sizes) for name, sizes in sums.items() if any(size > 0 for size in sizes))
