# SPDX-License-Identifier: Apache-2.0
"""Pages about runs: what was recorded of trainings and inferences, as one HTML file that holds everything it needs."""
