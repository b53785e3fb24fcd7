# SPDX-License-Identifier: Apache-2.0
VERSION: str
TORCH_VERSION: str
