# SPDX-License-Identifier: Apache-2.0
"""Generates the files with which other launchers start a job over islands, as text; nothing is run."""
