# SPDX-License-Identifier: Apache-2.0
import typer

from atoll.doctor.command import doctor

typer.run(doctor)
