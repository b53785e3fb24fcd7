# SPDX-License-Identifier: Apache-2.0
"""What a rank's buffers are on."""

import os
import sys

import torch

from atoll import vendors


def split_devices(text: str, ranks: int) -> list[str]:
    """One device per rank from "sim,sim,cpu", or one for all; none from "". Raises ValueError."""
    devices = [part.strip() for part in text.split(",")] if text else []
    if "" in devices:
        raise ValueError(f"--device {text}: expected devices with commas, such as sim,sim,cpu")
    if len(devices) not in (0, 1, ranks):
        raise ValueError(
            f"--device {text} names {len(devices)} devices, the job has {ranks} ranks: give one, or one each"
        )
    return devices if len(devices) != 1 else devices * ranks


def take_device(wanted: str) -> torch.device:
    """Makes `wanted` this process's current device, before its first group; without it what ATOLL_DEVICE says. Raises
    atoll.vendors.VendorError when it is not here."""
    if wanted:
        os.environ["ATOLL_DEVICE"] = wanted
    device = vendors.this_device()
    if device.type != "cpu":
        assert device.index is not None
        torch.accelerator.set_device_index(device.index)
    return device


def synchronize(device: torch.device | str) -> None:
    """Waits until the device has done all that was asked of it."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(torch.device(device))


def oversubscribed(device: torch.device) -> bool:
    """Whether this machine was too slow for the modelled times of a simulated device."""
    return device.type == "sim" and bool(sys.modules["atoll.sim"].oversubscribed(device.index))
