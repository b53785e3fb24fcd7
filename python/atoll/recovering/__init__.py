# SPDX-License-Identifier: Apache-2.0
"""Trainings that go on without the ranks that they lose: `atoll.ElasticTrainer`."""
