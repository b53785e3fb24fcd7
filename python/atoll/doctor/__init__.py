# SPDX-License-Identifier: Apache-2.0
"""Examines a job: its ranks, islands and links, what they measure, and whether every collective gives right results."""
