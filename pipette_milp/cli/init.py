"""Command ``init``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipette_milp.cli.common import check_writable, command, tell


@command
def init(
    model: Annotated[
        str,
        typer.Option(
            metavar="CONFIG.JSON|PRESET", help="Hugging Face config.json, or a preset of `list models`."
        ),
    ],
    cluster: Annotated[
        str, typer.Option(metavar="NODESxGPUS:TYPE", help="Such as 8x8:a100-80gb; types: `list gpus`.")
    ],
    global_batch: Annotated[int, typer.Option(metavar="N", help="Sequences per iteration.")],
    sequence_length: Annotated[int, typer.Option(metavar="S", help="Tokens per sequence in training.")],
    network: Annotated[
        str | None, typer.Option(metavar="CARDSxRATE", help="Network cards of a node, such as 8x200Gbit/s.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="FILE", help="Host names, one a line, in the order of GPU ids.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32, fp16 or bf16; default: bf16 where the GPU has it.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="- is standard output.")
    ] = "-",
) -> None:
    """Make an instance from a model, a GPU type and nominal links.

    Nominal links are scaled to what is usually attained; both figures stay in `provenance`, as does the
    origin of everything else. Replace them by measured ones where you can.
    """
    from pipette_milp.init import build_instance, read_hosts
    from pipette_milp.schema.output import write_json_atomically

    check_writable(output)
    instance = build_instance(
        model=model,
        cluster=cluster,
        network=network,
        global_batch_size=global_batch,
        sequence_length=sequence_length,
        hosts=None if hosts is None else read_hosts(hosts),
        precision=precision,
    )
    write_json_atomically(output, instance)
    if output != "-":
        tell(f"wrote {output}; next: pipette-milp solve {output}")
