"""Results to report about."""

from __future__ import annotations

import functools

from pipette_milp.report import html_report
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.schema.result import SolveResult
from pipette_milp.solvers import solve
from tests.unit.plots.cases import tiny_data

Case = tuple[Instance, SolveResult]
SCRIPT = "<script>window.hacked=1</script>"


def _solved(data: dict[str, object], solver: str = "exhaustive") -> Case:
    instance = load_instance(data)
    return instance, solve(instance, solver=solver, threads=1)


@functools.cache
def two_stages() -> Case:
    """Two nodes of two GPUs, proven."""
    return _solved(tiny_data("tiny-2x2-a100-nominal"))


@functools.cache
def one_gpu() -> Case:
    data = tiny_data("tiny-2x2-a100-nominal")
    gpu = next(iter(data["cluster"]["gpu_types"]))
    data["cluster"]["nodes"] = [{"name": "only", "gpu_type": gpu, "gpus": 1}]
    return _solved(data)


@functools.cache
def hostile() -> Case:
    """Names that would do harm where they are taken for markup or for formulas."""
    data = tiny_data("tiny-2x2-a100-nominal")
    kind = data["cluster"]["nodes"][0]["type"]
    data["name"] = f"{SCRIPT}</title>{{{{ 7 * 7 }}}}"
    data["model"]["name"] = "<b>bold</b>"
    data["provenance"] = {"</dd><img src=x onerror=alert(1)>": "' onload='alert(1)"}
    data["cluster"]["nodes"] = [
        {"name": "<img src=x onerror=window.hacked=1>", "type": kind},
        {"name": "$\\frac{$ & 'quoted' \"twice\"", "type": kind},
    ]
    return _solved(data)


@functools.cache
def infeasible() -> Case:
    """A model that no GPU of the cluster can hold."""
    data = tiny_data("tiny-2x2-a100-nominal")
    for gpu in data["cluster"]["gpu_types"].values():
        gpu["memory"] = "1 GiB"
    return _solved(data, solver="auto")


CASES = {"two stages": two_stages, "hostile names": hostile, "one GPU": one_gpu, "infeasible": infeasible}


@functools.cache
def page(case: str) -> str:
    """The report of a case, written once for all tests."""
    return html_report(*CASES[case](), instance_file="my instance.json", result_file="r.json")
