"""`compare`: solvers x instances x seeds into a folder: the log, tables, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipette_milp.experiments.engine import Listener, Workers, run_missing
from pipette_milp.experiments.log import Record, RunLog
from pipette_milp.experiments.solve_runs import SolveJob
from pipette_milp.experiments.tables import write_tables

LOG_NAME = "runs.jsonl"


def compare(
    jobs: Sequence[SolveJob],
    directory: str | Path,
    *,
    workers: Workers | None = None,
    listener: Listener | None = None,
    pictures: bool = True,
) -> list[Record]:
    """Do the runs that ``directory`` does not hold yet, and write its tables and pictures.

    The tables are about the runs asked for; others that the log holds stay there.

    Args:
        pictures: draw where matplotlib is installed.

    Returns:
        The records of all jobs, in their order.

    Raises:
        InputError: the directory cannot be used, see `RunLog` and `run_missing`.
        KeyboardInterrupt: tables are written for the runs that are finished.
    """
    directory = Path(directory)
    with RunLog(directory / LOG_NAME) as log:
        try:
            run_missing(jobs, log, workers, listener)
        finally:
            records = log.of(job.key for job in jobs)
            if records:
                write_tables(records, directory)
                if pictures:
                    draw_where_possible(records, directory)
    return records


def draw_where_possible(records: Sequence[Record], directory: Path) -> None:
    """Pictures of a comparison, where matplotlib is there."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        return
    from pipette_milp.experiments.plots import draw_all

    draw_all(records, directory)
