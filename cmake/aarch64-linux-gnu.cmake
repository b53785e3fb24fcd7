# SPDX-License-Identifier: Apache-2.0
# For 64-bit ARM on another machine: Debian's cross compiler and its arm64 packages (docs/small-computers.md).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)  # FindOpenSSL uses pkg-config
# Debian keeps the libraries of both architectures side by side, so the emulator needs no folder of its own.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
