# SPDX-License-Identifier: Apache-2.0
"""Uneven, exactly weighted batches in other libraries' training loops. Imported by those who use them, never by
`import atoll`."""
