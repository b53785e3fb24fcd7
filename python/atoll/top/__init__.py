# SPDX-License-Identifier: Apache-2.0
"""Live metrics in a terminal, from the endpoints that Prometheus reads."""
