"""What a run needs, foreseen from cards and YAML alone: `harness plan`.

    card + method YAML + settings -> Run (sizes) -> phases (memory) + disk + seconds -> Plan -> verdict, table, JSON

    spec, settings      what a method declares about itself, and the settings of the run, without importing it
    data, encoders      the dataset and the encoder as numbers
    work, steps         batches, pools and blocks of every stage
    memory, disk        bytes, moment by moment
    devices, timing     what the run is planned for, and how long it takes there
    estimate, report    the plan, and how people read it
    measure             the peak of a real run, which plans are held against

Nothing here imports torch, transformers or MLflow; memory is read from the system's files, never probed.
"""

from harness.plan.devices import Target, cpu_target, cuda_target
from harness.plan.estimate import Plan, make_plan
from harness.plan.spec import PlanSpec, check_plan, plan_spec

__all__ = ["Plan", "PlanSpec", "Target", "check_plan", "cpu_target", "cuda_target", "make_plan", "plan_spec"]
