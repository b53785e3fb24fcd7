# SPDX-License-Identifier: Apache-2.0
"""Live figures in a terminal, from where Prometheus would read them."""
