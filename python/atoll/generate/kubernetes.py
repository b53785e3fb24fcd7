# SPDX-License-Identifier: Apache-2.0
"""Manifests for Kubernetes: a JobSet with one replicated job for each island, and the same as a runtime and a job for
Kubeflow Trainer. They are JSON, which is also valid YAML."""

import json
import re
from typing import Any

from atoll.generate.islands import Hosts, Job
from atoll.launch import LaunchError

# The resource names of device plugins.
RESOURCES = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu", "npu": "huawei.com/Ascend910", "xpu": "gpu.intel.com/xe"}
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,24}[a-z0-9])?")
_NOTE = "atoll.generate/note"


def jobset(job: Job) -> str:
    note = "Written by `atoll generate jobset`; read with the published models, not run."
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, "annotations": {_NOTE: note}},
        "spec": _jobs(job),
    }
    return json.dumps(manifest, indent=2) + "\n"


def kubeflow(job: Job) -> str:
    """Returns a TrainingRuntime and the TrainJob that uses it. The JobSet that Kubeflow makes has the TrainJob's
    name."""
    note = "Written by `atoll generate kubeflow`; read with the published models, not run."
    group, runtime = "trainer.kubeflow.org", f"{job.name}-runtime"
    manifests = [
        {
            "apiVersion": f"{group}/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": {"name": runtime, "annotations": {_NOTE: note}},
            "spec": {"template": {"spec": _jobs(job)}},
        },
        {
            "apiVersion": f"{group}/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": job.name, "annotations": {_NOTE: note}},
            "spec": {"runtimeRef": {"apiGroup": group, "kind": "TrainingRuntime", "name": runtime}},
        },
    ]
    return "---\n".join(json.dumps(manifest, indent=2) + "\n" for manifest in manifests)


def _jobs(job: Job) -> dict[str, Any]:
    """Returns the specification of a JobSet."""
    _check_label("--name", job.name)
    for each in job.islands:
        _check_label("island", each.island.name)
    before, jobs = 0, []
    # A pod of a JobSet has the host name JOBSET-JOB-0-INDEX.JOBSET.
    first = f"{job.name}-{job.islands[0].island.name}-0-0.{job.name}"
    for each in job.islands:
        own = f"$(({before} + JOB_COMPLETION_INDEX))"
        pod = _pod(each, "exec " + job.command(each, own, first, container=False), job.port)
        specification = {
            "parallelism": each.hosts, "completions": each.hosts, "completionMode": "Indexed", "backoffLimit": 0,
            "template": {"spec": pod},
        }  # fmt: skip
        jobs.append({"name": each.island.name, "replicas": 1, "template": {"spec": specification}})
        before += each.hosts
    return {"network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True}, "replicatedJobs": jobs}


def _pod(each: Hosts, command: str, port: int) -> dict[str, Any]:
    name = each.island.name
    if not each.island.container:
        raise LaunchError(f"island {name!r} has no image: add container=IMAGE, with Atoll and the script in it")
    resources: dict[str, Any] = {"requests": {"cpu": str(each.processors)}}
    if each.accelerator:
        if each.accelerator not in RESOURCES:
            known = ", ".join(RESOURCES)
            raise LaunchError(
                f"island {name!r}: the Kubernetes resource of {each.accelerator} is unknown (known: {known})"
            )
        resources["limits"] = {RESOURCES[each.accelerator]: str(each.ranks)}
    container: dict[str, Any] = {
        "name": "node", "image": each.island.container,
        "command": ["bash", "-c", command.replace("$", "$$")],  # which becomes $ again
        "ports": [{"containerPort": port, "protocol": "TCP"}], "resources": resources,
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    # Atoll's own links need no /dev/shm; the islands' libraries need more than the default 64 MB.
    pod["volumes"] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if each.select:
        pod["nodeSelector"] = each.select
    return pod


def _check_label(what: str, name: str) -> None:
    if not _LABEL.fullmatch(name):
        raise LaunchError(f"{what} {name!r}: Kubernetes allows up to 26 lower-case letters, digits and hyphens here")
