"""Made-up measurements for the tests of speed reports."""

from harness.perf import Row, Sample, bound, compare
from harness.perf.saved import Machine, SavedRow, Speed, Suite

LABELS = (13_000, 131_073, 1_305_265)


def seconds(middle: float) -> Sample:
    """Three measurements around a median."""
    return Sample((0.9 * middle, middle, 1.2 * middle), "s")


def scaling_rows() -> list[Row]:
    """Step and memory of two methods: one flat, one proportional to the labels."""
    rows = []
    for method, bytes_each in (("unidec", 12 * 256), ("renee", 8 * 256)):
        for labels in LABELS:
            size = f"{labels:,} labels"
            step = seconds(0.25 if method == "unidec" else 2e-6 * labels)
            table = Sample((float(bytes_each * labels),), "B")
            peak = Sample((bytes_each * labels * 1.1 + 4e8,), "B")
            at: dict[str, float | str] = {"method": method, "labels": labels}
            rows.append(bound(f"step of {method}", size, step, at=at | {"quantity": "step"}))
            judged = compare(f"peak of {method}", size, "table + moments", peak, table, at_most=1.15)
            rows.append(Row(**{**judged.__dict__, "at": at | {"quantity": "memory"}}))
    return rows


def training_rows() -> list[Row]:
    """A met target, a missed one, a bound, a share, a rate and a figure without a target."""
    gemm = Sample((150e9, 155e9, 157e9), "FLOP/s")
    return [
        compare("UniDEC step", "L = 131K", "dense AdamW", seconds(0.2), seconds(1.5), at_least=5, detail="loss 40 %"),
        compare("UniDEC step", "1.3M against 13K", "the same", seconds(0.3), seconds(0.2), at_most=1.15),
        compare("encoder step", "B = 256", "GEMM peak", Sample((110e9, 112e9, 113e9), "FLOP/s"), gemm, at_least=0.7),
        bound("share that is no product", "B = 64", Sample((0.017, 0.02), "%"), at_most=0.08),
        bound("label file", "27 MB", Sample((127e6,), "B/s"), at_least=30e6),
        compare("rows", "N = 4", "other", Sample((50_467.0,), "rows/s"), Sample((18_179.0,), "rows/s")),
    ]


def suite(rows: list[Row], **changes: object) -> Suite:
    """A suite of a made-up machine."""
    machine = Machine(cpu="Some CPU", cores=2, memory_gib=23.5, caches={"L2": "512K"}, packages={"torch": "2.13"})
    values = {"about": "What it is.", "machine": machine, "commit": "ab" * 20, "dirty": False} | changes
    return Suite(**{"measured": "2026-11-16", "seconds": 61.0, "rows": [SavedRow.of(row) for row in rows]} | values)


def speed() -> Speed:
    """Two suites."""
    return Speed(suites={"training": suite(training_rows()), "scaling": suite(scaling_rows())})
