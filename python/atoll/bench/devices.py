# SPDX-License-Identifier: Apache-2.0
"""The devices that hold the ranks' buffers."""

import os
import sys

import torch

from atoll import vendors


def split_devices(text: str, ranks: int) -> list[str]:
    """Returns one device per rank from "sim,sim,cpu" or from one for all; an empty list from "". Raises ValueError."""
    devices = [part.strip() for part in text.split(",")] if text else []
    if "" in devices:
        raise ValueError(f"--device {text}: expected comma-separated devices, such as sim,sim,cpu")
    if len(devices) not in (0, 1, ranks):
        raise ValueError(
            f"--device {text} names {len(devices)} devices, but the job has {ranks} ranks: give one, or one per rank"
        )
    return devices if len(devices) != 1 else devices * ranks


def take_device(wanted: str) -> torch.device:
    """Makes `wanted`, or the device in ATOLL_DEVICE if empty, the current device of this process before its first
    group. Raises atoll.vendors.VendorError if the device is not available."""
    if wanted:
        os.environ["ATOLL_DEVICE"] = wanted
    device = vendors.this_device()
    if device.type != "cpu":
        assert device.index is not None
        torch.accelerator.set_device_index(device.index)
    return device


def synchronize(device: torch.device | str) -> None:
    """Waits until the device has completed all submitted work."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(torch.device(device))


def oversubscribed(device: torch.device) -> bool:
    """Returns whether this machine was too slow for the modelled times of a simulated device."""
    return device.type == "sim" and bool(sys.modules["atoll.sim"].oversubscribed(device.index))
