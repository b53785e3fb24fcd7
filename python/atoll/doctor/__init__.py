# SPDX-License-Identifier: Apache-2.0
"""Examines a job: its ranks, islands and links, their measured speed, and whether every collective is correct."""
