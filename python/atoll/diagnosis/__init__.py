# SPDX-License-Identifier: Apache-2.0
"""What a job's ranks wrote down about their collectives, put together: `atoll trace`."""
