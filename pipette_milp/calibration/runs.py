"""Measured runs as a table: one row a run, read from a CSV file with documented columns.

The columns are those of the shared collection of published runs; a user's own table needs only `NEEDED`,
everything else has a stated default or stays unknown. Unknown columns are listed, so that a misspelt one
is not overlooked.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.run_table import NEEDED
from pipette_milp.schema.strict import read_text

COLUMNS = {
    "run_id": "name of the run; its part before the first underscore names the source",
    "source": "where the figures were published",
    "url_or_repo_path": "the same as an address",
    "split_hint": "subset the run is counted in; exclude-* is left out",
    "gpu_model": "name of a GPU preset, or several with counts (A x12 + B x4)",
    "gpu_mem_gb": "nominal memory of the GPU, GB; tells variants of one GPU apart",
    "gpus_per_node": "default 8",
    "num_gpus": "GPUs of the run",
    "intra_node_bw_GBps": "nominal bandwidth between GPUs of a node, GB/s",
    "inter_node_bw_Gbps": "nominal bandwidth of all network cards of a node, Gbit/s",
    "model_name": "any name",
    "params_B": "parameters in 1e9, not used",
    "layers": "transformer layers",
    "hidden": "hidden size",
    "ffn_hidden": "width of the MLP, default 4 * hidden",
    "heads": "attention heads",
    "kv_heads": "key/value heads, default heads",
    "vocab": "vocabulary, unpadded",
    "seq_len": "tokens a sequence",
    "moe_experts": "experts of a mixture-of-experts layer, empty for a dense model",
    "moe_topk": "experts a token visits",
    "tp": "tensor degree, default 1",
    "pp": "pipeline degree, default 1",
    "vpp": "virtual stages per pipeline stage, default 1",
    "dp": "data degree, default what is left of the GPUs",
    "cp": "context degree, default 1",
    "ep": "expert degree, default 1",
    "micro_batch": "sequences a micro-batch",
    "global_batch": "sequences an optimiser step",
    "num_microbatches": "per replica, default from the batches",
    "layer_partition": "boundaries of the stages over the framework's list of layers, such as 0-14-30",
    "schedule": "none, 1F1B, interleaved-1F1B or gpipe; default by pp and vpp",
    "seq_parallel": "True or False",
    "recompute": "none, selective or full",
    "zero_stage_or_dist_opt": "0 to 3, or dist_opt",
    "offload": "none; anything else is refused",
    "precision": "fp32, tf32, fp16, bf16, fp8 and their spellings",
    "flash_attention": "True or False",
    "framework": "name of the framework and its version",
    "measured_iter_time_s": "seconds an optimiser step",
    "measured_tflops_per_gpu": "as the source reports it, not used",
    "measured_mfu": "as the source reports it; splits nanotron-h100",
    "measured_tokens_per_s_per_gpu": "not used",
    "measured_peak_mem_gb": "in the unit of mem_metric",
    "oom": "True where the source says that the run ran out of memory",
    "peer_predicted_iter_time_s": "what the source's own model predicted",
    "peer_predicted_mem_gb": "the same for memory",
    "peer_name": "that model",
    "notes": "free text",
    "status": "ok, oom or failed; default ok",
    "mem_metric": "unit and definition of the memory figure",
    "tflops_kind": "not used",
    "iter_time_kind": "not used",
}
"""Every column and what it means."""

_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True)
class Run:
    """One row; ``fields`` holds what is not empty, as text."""

    line: int
    fields: Mapping[str, str]

    def text(self, name: str, default: str = "") -> str:
        return self.fields.get(name, default)

    def number(self, name: str) -> float | None:
        """A number, None where the field is empty.

        Raises:
            InputError: not a finite number.
        """
        text = self.fields.get(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(Problem(f"line {self.line}, {name}", f"expected a number, got {text!r}"))
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1.

        Raises:
            InputError: empty without a default, or something else.
        """
        value = self.number(name)
        if value is None:
            if default is None:
                raise InputError(Problem(f"line {self.line}, {name}", "is required"))
            return default
        if value < 1 or value != int(value):
            raise InputError(
                Problem(f"line {self.line}, {name}", f"expected a whole number of at least 1, got {value:g}")
            )
        return int(value)

    def flag(self, name: str) -> bool | None:
        """True, False, or None where the field is empty.

        Raises:
            InputError: something else.
        """
        text = self.fields.get(name)
        if text is None:
            return None
        if text.lower() in _YES:
            return True
        if text.lower() in _NO:
            return False
        raise InputError(Problem(f"line {self.line}, {name}", f"expected True or False, got {text!r}"))

    @property
    def name(self) -> str:
        return self.text("run_id", f"line-{self.line}")

    @property
    def source(self) -> str:
        """The prefix of the run's name: all runs of one source share it."""
        return self.name.split("_")[0] if "run_id" in self.fields else ""

    @property
    def subset(self) -> str:
        return self.text("split_hint", "runs")

    @property
    def status(self) -> str:
        """``ok``, ``oom`` or ``failed``."""
        return self.text("status", "ok").lower()


@dataclass(frozen=True)
class RunTable:
    """All rows of a file."""

    runs: tuple[Run, ...]
    sha256: str
    """Of the file: names the data a fit was made from."""
    source: str
    unknown_columns: tuple[str, ...] = ()
    """Read over: nothing here knows them."""


def read_runs(path: str | Path) -> RunTable:
    """Reads a table of runs from a file or from standard input (``-``).

    Raises:
        InputError: no table, repeated columns, required ones missing, rows of another length.
    """
    name = "standard input" if str(path) == "-" else str(path)
    text = read_text(path)
    table = parse_runs(text, name)
    if str(path) == "-":
        return table
    return replace(table, sha256=hashlib.sha256(Path(path).read_bytes()).hexdigest())


def parse_runs(text: str, source: str = "") -> RunTable:
    """A table from its text; see `read_runs`."""
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    problems: list[Problem] = []
    runs: list[Run] = []
    try:
        header = [name.strip() for name in next(rows, [])]
        problems += _header_problems(header)
        if problems:
            raise InputError(problems, source=source)
        for values in rows:
            if not any(value.strip() for value in values):
                continue
            if len(values) != len(header):
                place = f"line {rows.line_num}"
                problems.append(Problem(place, f"has {len(values)} fields, the header has {len(header)}"))
                continue
            fields = {key: value.strip() for key, value in zip(header, values, strict=True) if value.strip()}
            runs.append(Run(rows.line_num, fields))
    except csv.Error as error:
        raise InputError(Problem(f"line {rows.line_num}", f"no CSV: {error}"), source=source) from None
    if problems:
        raise InputError(problems, source=source)
    if not runs:
        raise InputError("has no rows", source=source)
    unknown = tuple(name for name in header if name not in COLUMNS)
    return RunTable(tuple(runs), hashlib.sha256(text.encode()).hexdigest(), source, unknown)


def _header_problems(header: list[str]) -> list[Problem]:
    if not header:
        return [Problem("line 1", f"expected a header with the columns {', '.join(NEEDED)}")]
    problems = [
        Problem("line 1", f"column {name!r} occurs twice")
        for name in dict.fromkeys(header)
        if header.count(name) > 1
    ]
    missing = [name for name in NEEDED if name not in header]
    return problems + [Problem("line 1", f"column {name!r} is required") for name in missing]
