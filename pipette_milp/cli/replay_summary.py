"""What a person sees of a replay."""

from __future__ import annotations

from typing import Any, TextIO

MOST_LINKS = 5
"""Links listed, those furthest from what was simulated first."""


def print_report(report: dict[str, Any], stream: TextIO) -> None:
    """Iteration, stages, and the links that differ most."""

    def line(text: str = "") -> None:
        print(text, file=stream)

    count = len(report["iterations_s"])
    line(
        f"measured {report['measured_s']:.4f} s, simulated {report['simulated_s']:.4f} s: "
        f"{report['error']:+.2%}  (median of {count}, spread {report['spread']:.2%}, {report['transport']}, "
        f"compute: {report['compute']})"
    )
    line()
    line("stage   compute s            last task ends s     gradient sync s")
    line("        simulated measured   simulated measured   simulated measured")
    for row in report["stages"]:
        cells = "   ".join(
            f"{row['simulated'][key]:9.4f} {row['measured'][key]:8.4f}"
            for key in ("compute_s", "finish_s", "gradient_sync_s")
        )
        line(f"{row['stage']:5d}   {cells}")
    links = sorted(
        (link for link in report["links"] if link["simulated_s"] > 0),
        key=lambda link: -abs(link["measured_s"] - link["simulated_s"]),
    )
    if links:
        line()
        line("transfers furthest from the simulation (mean of those whose end was seen)")
        for link in links[:MOST_LINKS]:
            line(
                f"  boundary {link['boundary']} {link['direction']:<8} replica {link['replica']}: "
                f"{link['from']} to {link['to']}  {link['simulated_s']:.6f} s simulated, "
                f"{link['measured_s']:.6f} s measured ({link['seen']} seen)"
            )
    for note in report["notes"]:
        line(f"note: {note}")
