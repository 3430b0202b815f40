"""Estimate what a run needs from the method's own parts, before it runs: `harness plan`.

    card + settings -> stand-in arrays -> the method's parts on fake tensors -> phases (memory) + disk + seconds -> Plan

    data        the dataset as numbers, and arrays of its sizes
    trace       model code on tensors without memory: bytes alive, FLOPs, bytes moved; what a call of an encoder costs
    build       the real encoders without weights, the parts of a method, and one training step of each stage
    devices     the device that the run is planned for: memory and speed
    estimate    the plan: moments, disk, time, verdict
    report      the plan as text

Memory is read from the system's files and counted from shapes, never probed.
"""

from harness.plan.devices import Target, cpu_target, cuda_target
from harness.plan.estimate import Plan, make_plan

__all__ = ["Plan", "Target", "cpu_target", "cuda_target", "make_plan"]
