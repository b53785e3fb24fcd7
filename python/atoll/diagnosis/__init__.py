# SPDX-License-Identifier: Apache-2.0
"""`atoll trace`: combines what a job's ranks recorded about their collectives."""
