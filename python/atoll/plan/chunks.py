# SPDX-License-Identifier: Apache-2.0
"""The stages of plans with several ranges of items on each rank."""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]


def named_pipelines(answer: Mapping[str, Any], name: str) -> list[Document]:
    """Returns the pipelines in an answer of the planner of layers, with a stage for each chunk. `name`: of the answer,
    for the error. Raises ValueError if a rank has several chunks whose items are not named."""
    pipelines: list[Document] = answer["pipelines"]
    chunks = answer.get("chunks", 1)
    if chunks == 1:
        return pipelines
    if not names_chunks(answer):
        raise ValueError(
            f'{name} has "chunks": {chunks}, the stages on each rank, but does not name the items of each stage: if '
            'the model has fewer items than stages, or the memories are too small, plan with fewer "chunks"; an answer '
            "of an earlier Atoll must be requested again. Or pass the number of blocks of each stage, such as "
            "plan=[4, 4, 4, 4] with two stages on each of 2 ranks"
        )
    return [{**pipeline, "stages": pipeline["chunked"]["stages"]} for pipeline in pipelines]


def names_chunks(answer: Mapping[str, Any]) -> bool:
    """Returns whether the items of each stage are named."""
    return answer.get("chunks", 1) == 1 or all(pipeline.get("chunked") for pipeline in answer["pipelines"] or [{}])
