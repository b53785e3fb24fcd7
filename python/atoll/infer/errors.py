# SPDX-License-Identifier: Apache-2.0
"""What can be wrong, by what the caller does next."""


class ExportError(ValueError):
    """The model, or its example, cannot be captured: change what the message names."""


class InputError(ValueError):
    """Inputs of an inference are unlike the example's: give such inputs, or prepare another session with these."""


class BundleError(ValueError):
    """The files of a bundle are damaged, incomplete or not Atoll's: export or copy them again."""


class ModelChangedError(RuntimeError):
    """The module is not any more what was captured: capture it, or prepare a session, again."""


class RefusedError(RuntimeError):
    """The server does not run this model for this robot, however often it is asked: change what the message names."""
