# SPDX-License-Identifier: Apache-2.0
"""`atoll.ElasticTrainer`: training that continues without lost ranks."""
