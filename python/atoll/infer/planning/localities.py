# SPDX-License-Identifier: Apache-2.0
"""Counts how the operators of a bundle can be divided, as in Intra-DP's table 2."""

import json
from typing import Any


def localities(folder: str) -> dict[str, Any]:
    """Returns for each dimension of each input how many operators are local, partial, global and constant when it is
    divided; dimensions of one row are left out. Raises ValueError that names the folder."""
    from atoll import _C
    from atoll.infer import graph as graphs
    from atoll.infer.bundle import Bundle
    from atoll.infer.errors import BundleError

    try:
        bundle = Bundle.load(folder)
    except BundleError as error:
        raise ValueError(f"{error}: --operators takes a folder that atoll export wrote") from None
    text = graphs.to_text(bundle.graph).decode()
    rows = []
    inputs = zip(bundle.graph["inputs"], bundle.inputs.names(), graphs.of_inputs(bundle.graph), strict=True)
    for tensor, name, like in inputs:
        for dim, size in enumerate(like["shape"]):
            if size < 2:
                continue
            counts = json.loads(_C.infer_dims(text, tensor, dim))
            del counts["dims"]
            rows.append({"input": name, "dim": dim, "rows": size, **counts})
    rows.sort(key=lambda row: (-row["local"], -row["dim"]))
    return {"schema": 1, "bundle": bundle.hash, "file": folder, "nodes": len(bundle.graph["nodes"]), "inputs": rows}
