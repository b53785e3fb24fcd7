# SPDX-License-Identifier: Apache-2.0
"""Makes pages about recorded trainings and inferences, each as one self-contained HTML file."""
