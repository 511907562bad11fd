"""JSON output of nccl-tests (``-J FILE``, since 2.18): the same runs as the text.

Times are microseconds, bandwidths GB/s = 1e9 bytes/s, as in the text; ``nan`` may be written as a string.
"""

from __future__ import annotations

import json
import math
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.collective import CollectiveRun, RankLine, Row, Timing, check_ranks, infer
from pipette_milp.importers.jsontext import at, load, number, whole
from pipette_milp.importers.nccl_tests import canonical_collective, check_timing
from pipette_milp.units import GB, US

KIND = "nccl-tests-json"


def detect(text: str) -> float:
    """Confidence in 0..1 that this is JSON output of nccl-tests."""
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return 0.0
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return 0.6 if '"out_of_place"' in text and '"results"' in text else 0.0
    if not isinstance(data, dict):
        return 0.0
    return 0.95 if "results" in data and ("nccl_version" in data or "devices" in data) else 0.0


def parse(text: str, source: str) -> tuple[CollectiveRun, ...]:
    """The one run of a file.

    Raises:
        InputError: not JSON, a field missing or of the wrong type, figures that contradict each other.
    """
    data = load(text, source)
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        raise InputError(Problem(at(source, "results"), "expected a list of results"))
    devices = data.get("devices")
    if not isinstance(devices, list | None):
        raise InputError(Problem(at(source, "devices"), "expected a list"))
    ranks = tuple(_rank(item, index, source) for index, item in enumerate(devices or []))
    check_ranks(ranks, at(source, "devices"))
    rows = tuple(
        row
        for index, item in enumerate(data["results"])
        if (row := _row(item, f"results[{index}]", source)) is not None
    )
    if not rows:
        raise InputError(
            Problem(at(source, "results"), "no result has a size above zero: nothing was measured")
        )
    warnings: list[Problem] = []
    if data.get("out_of_bounds") not in (None, 0, {"out_of_bounds": 0}) and _bad_count(data["out_of_bounds"]):
        warnings.append(Problem(at(source, "out_of_bounds"), "some values were wrong: the run is not valid"))
    collective, count = infer(rows, ranks, _collective(data), at(source, "results"))
    average = data.get("average_bus_bandwidth")
    if isinstance(average, dict):  # newer files: {"bandwidth": x, ...}
        average = average.get("bandwidth")
    return (
        CollectiveRun(
            source=source,
            place=at(source, "results"),
            collective=collective,
            ranks=ranks,
            rank_count=count,
            rows=rows,
            average_busbw_bytes_per_s=_average(average, source),
            warnings=tuple(warnings),
        ),
    )


def _bad_count(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.get("out_of_bounds", value.get("count", 0))
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0


def _average(value: Any, source: str) -> float | None:
    if value is None or (isinstance(value, str) and value.lower().lstrip("-") == "nan"):
        return None
    return number(value, at(source, "average_bus_bandwidth")) * GB


def _collective(data: dict[str, Any]) -> str | None:
    config = data.get("config")
    if not isinstance(config, dict):
        config = {}
    candidates: list[Any] = [
        data.get("collective"),
        data.get("test"),
        config.get("collective"),
        config.get("test"),
    ]
    arguments = data.get("args")
    if isinstance(arguments, str):
        arguments = arguments.split()
    if isinstance(arguments, list) and arguments:
        candidates.append(str(arguments[0]).rsplit("/", 1)[-1])
    for candidate in candidates:
        if isinstance(candidate, str) and (name := canonical_collective(candidate)):
            return name
    return None


def _rank(item: Any, index: int, source: str) -> RankLine:
    path = f"devices[{index}]"
    if not isinstance(item, dict):
        raise InputError(Problem(at(source, path), "expected an object"))
    host = item.get("hostname")
    if not isinstance(host, str) or not host:
        raise InputError(
            Problem(at(source, f"{path}.hostname"), f"expected the name of a host, got {host!r}")
        )
    return RankLine(
        rank=whole(item.get("rank"), at(source, f"{path}.rank")),
        host=host,
        device=whole(item.get("device"), at(source, f"{path}.device")),
        bus_id=str(item.get("device_hex", "")),
        name=str(item.get("device_info", "")),
    )


def _row(item: Any, path: str, source: str) -> Row | None:
    if not isinstance(item, dict):
        raise InputError(Problem(at(source, path), "expected an object"))
    size = whole(item.get("size"), at(source, f"{path}.size"))
    if size == 0:
        return None
    modes = [_timing(item.get(name), size, f"{path}.{name}", source) for name in ("out_of_place", "in_place")]
    if modes == [None, None]:
        raise InputError(Problem(at(source, path), "expected out_of_place or in_place figures"))
    return Row(size, modes[0], modes[1])


def _timing(item: Any, size: int, path: str, source: str) -> Timing | None:
    if item is None:
        return None
    if not isinstance(item, dict):
        raise InputError(Problem(at(source, path), "expected an object"))
    key = "time" if "time" in item else "cpu_time"
    figures = [item.get(name) for name in (key, "alg_bw", "bus_bw")]
    if all(isinstance(value, str) and value.lower().lstrip("-") == "nan" for value in figures):
        return None
    time_us, algbw, busbw = (
        number(value, at(source, f"{path}.{name}"))
        for value, name in zip(figures, (key, "alg_bw", "bus_bw"), strict=True)
    )
    check_timing(size, time_us, algbw, busbw, at(source, f"{path}.alg_bw"))
    wrong = item.get("nwrong")
    if wrong is not None and not (isinstance(wrong, str) and wrong.upper() == "N/A"):
        wrong = whole(wrong, at(source, f"{path}.nwrong"))
        if wrong:
            raise InputError(Problem(at(source, f"{path}.nwrong"), f"{wrong} elements had a wrong value"))
    else:
        wrong = None
    if not math.isfinite(time_us):
        raise InputError(Problem(at(source, f"{path}.{key}"), "expected a finite time"))
    return Timing(time_us * US, algbw * GB, busbw * GB, wrong)
