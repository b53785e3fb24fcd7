# SPDX-License-Identifier: Apache-2.0
"""The stages of plans with several ranges of items on each rank."""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]


def named_pipelines(answer: Mapping[str, Any], name: str) -> list[Document]:
    """The pipelines of what the planner of layers answered, with a stage for each chunk. `name`: of the answer, for
    the error. Raises ValueError for several chunks on a rank whose items are not named."""
    pipelines: list[Document] = answer["pipelines"]
    chunks = answer.get("chunks", 1)
    if chunks == 1:
        return pipelines
    if not names_chunks(answer):
        raise ValueError(
            f'{name} has "chunks": {chunks}, so many stages on each rank, and does not name the items of each of them: '
            'where the model has fewer items than stages, or the memories have no room, plan with fewer "chunks"; an '
            "answer of an earlier Atoll has to be asked for again. Or give the number of blocks of each stage, such as "
            "plan=[4, 4, 4, 4] with two stages on each of 2 ranks"
        )
    return [{**pipeline, "stages": pipeline["chunked"]["stages"]} for pipeline in pipelines]


def names_chunks(answer: Mapping[str, Any]) -> bool:
    """Whether the items of each stage are known."""
    return answer.get("chunks", 1) == 1 or all(pipeline.get("chunked") for pipeline in answer["pipelines"] or [{}])
