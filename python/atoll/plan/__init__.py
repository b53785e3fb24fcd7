# SPDX-License-Identifier: Apache-2.0
"""The planners: batches and layers for unlike devices, simulated steps, and inferences that a robot and a server
divide. They compute only: no clock, no thread, no unseeded random number.

    fast = atoll.plan.Rank(atoll.plan.Cost.affine(fixed=0.004, per_sample=0.0010))
    slow = atoll.plan.Rank(atoll.plan.Cost.affine(fixed=0.002, per_sample=0.0025), most=96)
    plan = atoll.plan.plan_batches(atoll.plan.BatchRequest([fast, slow], batch=256))
    print(plan.batches, plan.step, plan.bound)"""

from atoll._C import Cost
from atoll.plan.batches import (
    AdapterOptions,
    BatchComparison,
    BatchPlan,
    BatchRequest,
    Decision,
    MembershipAdvice,
    Network,
    Observation,
    PlanAdapter,
    PlanChange,
    Rank,
    Window,
    advise_membership,
    batch_policies,
    compare_policies,
    draw,
    evaluate_batches,
    fit_cost,
    index_hash,
    permutation,
    plan_batches,
)
from atoll.plan.inference import (
    InferencePlans,
    InferenceRequest,
    LinkRates,
    LinkTrace,
    Replay,
    RobotPower,
    forecasts,
    inference_policies,
    plan_inference,
    read_model,
)
from atoll.plan.layers import Devices, Item, LayerPlan, LayerRequest, Link, Tie, plan_layers, price_layers
from atoll.plan.steps import Simulation, schedule_actions, simulate, step_of_layers, write_trace

__all__ = [
    "AdapterOptions", "BatchComparison", "BatchPlan", "BatchRequest", "Cost", "Decision", "Devices",
    "InferencePlans", "InferenceRequest", "Item", "LayerPlan", "LayerRequest", "Link", "LinkRates", "LinkTrace",
    "MembershipAdvice", "Network", "Observation", "PlanAdapter", "PlanChange", "Rank", "Replay", "RobotPower",
    "Simulation", "Tie", "Window", "advise_membership", "batch_policies", "compare_policies", "draw",
    "evaluate_batches", "fit_cost", "forecasts", "index_hash", "inference_policies", "permutation", "plan_batches",
    "plan_inference", "plan_layers", "price_layers", "read_model", "schedule_actions", "simulate", "step_of_layers",
    "write_trace",
]  # fmt: skip
