# SPDX-License-Identifier: Apache-2.0
"""`atoll run`, `atoll ps` and `atoll stop`: jobs over unlike islands, on torch elastic."""


class LaunchError(Exception):
    """The command cannot do what it was asked for; the text says what is wrong and the way out."""
