# SPDX-License-Identifier: Apache-2.0
import typer

from atoll.bench.command import bench

typer.run(bench)
