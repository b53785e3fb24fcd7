# SPDX-License-Identifier: Apache-2.0
"""Importing this module restarts the program in the checkout's .venv, so that bench/run.py works with any Python."""

import os
import sys
from pathlib import Path

OWN = Path(__file__).resolve().parents[1] / ".venv/bin/python"
if sys.prefix == sys.base_prefix and OWN.exists():
    os.execv(OWN, [str(OWN), *sys.argv])
