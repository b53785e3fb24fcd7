# SPDX-License-Identifier: Apache-2.0
"""Jobs that a Redis server coordinates: their store, rendezvous and members."""
