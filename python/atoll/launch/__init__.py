# SPDX-License-Identifier: Apache-2.0
#
# The promises of the launcher, each proven by the tests that docs/promises.md names:
# S-1: When a rank fails, `atoll run` stops the others; report and exit status name the rank that failed first.
# S-2: A signal to `atoll run` ends its ranks and what they have started; its death ends its ranks.
# S-3: The lines that ranks print are neither torn, mixed nor lost.
# S-4: Without islands, `atoll run` starts ranks with the variables that torchrun sets.
# S-5: Every local rank is in exactly one of the islands that a command names.
"""`atoll run`, `atoll ps` and `atoll stop`: jobs over unlike islands, on torch elastic."""


class LaunchError(Exception):
    """The command cannot be carried out; the message says what is wrong and the way out."""
