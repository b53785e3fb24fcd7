# SPDX-License-Identifier: Apache-2.0
"""`atoll run`, `atoll ps` and `atoll stop`: jobs over unlike islands, on torch elastic."""


class LaunchError(Exception):
    """The command cannot be carried out; the message says what is wrong and the way out."""
