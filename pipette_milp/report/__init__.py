"""One self-contained HTML file about a result: it loads nothing, runs no script and prints.

Needs jinja2 and matplotlib (extra ``report``), imported on first use.
"""

from pipette_milp.report.page import html_report

__all__ = ["html_report"]
