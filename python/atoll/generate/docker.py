# SPDX-License-Identifier: Apache-2.0
"""Dockerfiles that build Atoll from its checkout, against the PyTorch in the vendor's image."""

from dataclasses import dataclass

# What the build needs, without the packages for tests; scripts/debian-packages.txt gives the reasons.
PACKAGES = (
    "flatbuffers-compiler", "g++", "libflatbuffers-dev", "libfmt-dev", "libhiredis-dev", "libjpeg62-turbo-dev",
    "libseccomp-dev", "libspdlog-dev", "libssl-dev", "libucx-dev", "libxxhash-dev", "libzstd-dev",
    "nlohmann-json3-dev",
)  # fmt: skip
_UBUNTU_NAMES = {"libjpeg62-turbo-dev": "libjpeg-turbo8-dev"}
# The part of a checkout that the build reads, so that changes elsewhere do not restart it.
FILES = ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "releases.toml", "requirements.txt")
FOLDERS = ("cmake", "python", "scripts", "src")
BUILD_TOOLS = ("scikit-build-core", "cmake", "ninja")


@dataclass(frozen=True)
class Image:
    base: str  # empty if the vendor publishes none: --base must name one
    debian: bool  # else Ubuntu
    torch: str  # the packages that install PyTorch; empty if the base image has it
    note: str


_CPU = Image(
    "python:3.11-slim-bookworm", True, "torch==2.13.0", "PIP_EXTRA_INDEX_URL may name an index of CPU builds.",
)  # fmt: skip
_HUAWEI = Image(
    "quay.io/ascend/cann:latest", False, "torch==2.11.0 torch_npu==2.11.0",
    "Choose a tag for your device, with Ubuntu 24.04 or newer.",
)  # fmt: skip
IMAGES = {  # by the vendors of atoll/vendors.py, and the names of platforms
    "cpu": _CPU,
    "sim": _CPU,
    "nvidia": Image("pytorch/pytorch:2.13.0-cuda13.0-cudnn9-devel", False, "", "Run it with --gpus all."),
    "amd": Image(
        "rocm/pytorch:latest", False, "",
        "Choose a tag with PyTorch 2.11 or newer.\n# Run it with --device /dev/kfd --device /dev/dri.",
    ),
    "intel": Image(
        "", False, "",
        "The image must hold PyTorch's build for xpu and the driver's libraries.\n# Run it with --device /dev/dri.",
    ),
    "huawei": _HUAWEI,
    "ascend": _HUAWEI,
    "cambricon": Image("", False, "", "The image must hold PyTorch and torch_mlu."),
    "moorethreads": Image("", False, "", "The image must hold PyTorch and torch_musa."),
}  # fmt: skip


def docker(vendor: str, base: str) -> str:
    image = IMAGES[vendor]
    names = sorted(name if image.debian else _UBUNTU_NAMES.get(name, name) for name in PACKAGES)
    packages = " \\\n        ".join([*names, "python3-dev"] if not image.debian else names)
    torch = f"RUN pip install --no-cache-dir {image.torch}\n" if image.torch else ""
    folders = "\n".join(f"COPY {folder} {folder}" for folder in FOLDERS)
    return f"""\
# Written by `atoll generate docker --vendor {vendor}`: docker build -t atoll-{vendor} -f FILE . in a checkout of Atoll.
# Checked with hadolint, not built. {image.note}
ARG BASE={base or image.base}

# hadolint ignore=DL3006
FROM ${{BASE}} AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_BREAK_SYSTEM_PACKAGES=1
# hadolint ignore=DL3008
RUN apt-get update \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \\
        {packages} \\
    && rm -rf /var/lib/apt/lists/*
RUN dpkg --compare-versions "$(dpkg-query -W -f='${{Version}}' nlohmann-json3-dev)" ge 3.11 \\
    || {{ echo "this image is too old: --build-arg BASE=IMAGE with Debian 12, Ubuntu 24.04 or newer" >&2; exit 1; }}
{torch}WORKDIR /src
COPY {" ".join(FILES)} ./
{folders}
# Built against the installed PyTorch: the wheel requires exactly that version.
RUN grep -E '^({"|".join(BUILD_TOOLS)})==' requirements.txt > /tmp/tools.txt \\
    && pip install --no-cache-dir -r /tmp/tools.txt \\
    && pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels .

# hadolint ignore=DL3006
FROM ${{BASE}}
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_BREAK_SYSTEM_PACKAGES=1
{torch}COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels && atoll info
WORKDIR /job
CMD ["atoll", "--help"]
"""
