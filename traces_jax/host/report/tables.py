"""Tables: cells of groups and of the paper, and their text in Markdown, LaTeX, HTML and CSV."""

import csv
import dataclasses
import html
import io
import itertools
import math
import re
from collections.abc import Sequence

from traces_jax.host.report import groups, published, statistics
from traces_jax.host.report.groups import Group
from traces_jax.host.report.statistics import Estimate, Spread

NONE = "-"
BEST = "★"
# Letters of a cell that is broken into lines on a page.
_LONG = 40
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
# Special characters of Markdown: HTML, code, columns, emphasis, headings, links, entities.
_MARKDOWN = re.compile(r"([\\|*<>`~#]|(?<!\w)_|_(?!\w)|\](?=\()|&(?=#?\w+;))")
# Characters that start a formula in a spreadsheet.
_FORMULA = ("=", "+", "-", "@")
_ROWS = ("return", "cost", "labelled", "accepted")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One method on one task.

    Attributes:
      name: heading of its column.
      source: its method.
      figures: by the names of `_ROWS`; None if unknown.
      seeds: number of evaluated seeds.
      within: whether its mean cost is within the limit.
      best: whether its return is the highest of ours within the limit.
    """

    name: str
    source: str
    figures: dict[str, Spread | None]
    seeds: int
    within: bool
    best: bool = False


@dataclasses.dataclass(frozen=True)
class Cell:
    """Text; bold if within the limit, marked if best."""

    text: str
    bold: bool = False
    best: bool = False
    faint: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, column headings, and rows; a row whose first cell is not empty starts a block."""

    title: str
    head: list[str]
    rows: list[list[Cell]]


def evaluated(tasks: Sequence[Sequence[Group]]) -> list[list[Group]]:
    """The groups with raw episodes, which all tables below need."""
    kept = [[group for group in own if group.scores("cost").size] for own in tasks]
    return [own for own in kept if own]


def entries(own: Sequence[Group]) -> list[Entry]:
    """The columns of one task: for each method our settings, next to the paper's results."""
    ours = [_entry(group) for group in own]
    best = max((_mean(entry, "return") for entry in ours if entry.within), default=math.inf)
    ours = [dataclasses.replace(entry, best=entry.within and _mean(entry, "return") == best) for entry in ours]
    result: list[Entry] = []
    for source in dict.fromkeys(group.source for group in own):
        result += [entry for entry in ours if entry.source == source]
        if any(group.limit == published.LIMIT for group in own if group.source == source):
            result += _quoted(source, own[0].task)
    return result


def _entry(group: Group) -> Entry:
    figures = {name: statistics.spread(group.scores(name)) for name in ("return", "cost", "accepted")}
    figures["labelled"] = statistics.spread(group.labels())
    costs = group.scores("cost")
    return Entry(group.name, group.source, figures, seeds=costs.size, within=bool(costs.mean() <= group.limit))


def _mean(entry: Entry, name: str) -> float:
    spread = entry.figures[name]
    return spread.mean if spread else math.nan


def _quoted(source: str, task: str) -> list[Entry]:
    found = {name: figures[task] for name, figures in published.PAPER.get(source, {}).items() if task in figures}
    return [
        Entry(
            name,
            source,
            {
                "return": Spread(*quoted.returns),
                "cost": Spread(*quoted.cost),
                "labelled": Spread(*quoted.labels) if quoted.labels else None,
                "accepted": None,
            },
            seeds=published.SEEDS,
            within=quoted.cost[0] <= published.LIMIT,
        )
        for name, quoted in found.items()
    ]


def results(tasks: Sequence[Sequence[Group]]) -> list[Table]:
    """A table of all tasks whose methods have one setting each, and one for each comparison of settings."""
    sets: dict[tuple[str, ...], list[Sequence[Group]]] = {}
    for own in tasks:
        sets.setdefault(tuple(group.name for group in own if group.setting), []).append(own)
    tables = []
    for settings, listed in sorted(sets.items(), key=lambda item: bool(item[0])):
        columns = {own[0].task: {entry.name: entry for entry in entries(own)} for own in listed}
        methods = {name: entry.source for column in columns.values() for name, entry in column.items()}
        # Ours and the paper's figures of a method stand together.
        names = sorted(methods, key=lambda name: groups.index(list(groups.METHODS), methods[name]))
        rows = [row for own in listed for row in _task_rows(own, [columns[own[0].task].get(name) for name in names])]
        title = "Methods" if not settings else f"Settings on {', '.join(groups.short(own[0].task) for own in listed)}"
        tables.append(Table(title, ["task", "", *names], rows))
    return tables


def _task_rows(own: Sequence[Group], listed: Sequence[Entry | None]) -> list[list[Cell]]:
    limits = dict.fromkeys(f"{group.limit:g}" for group in own)
    heads = {"cost": f"cost (limit {', '.join(limits)})", "labelled": "labelled trajectories"}
    rows = [[Cell(heads.get(name, name)), *(_figure(entry, name) for entry in listed)] for name in _ROWS]
    rows.append([Cell("seeds"), *(Cell(str(entry.seeds) if entry else NONE, faint=True) for entry in listed)])
    # The row of labels is left out if no method uses labels.
    rows = [row for row in rows if any(cell.text != NONE for cell in row[1:])]
    return [[Cell("" if place else groups.short(own[0].task)), *row] for place, row in enumerate(rows)]


def _figure(entry: Entry | None, name: str) -> Cell:
    spread = entry.figures[name] if entry else None
    if entry is None or spread is None:
        return Cell(NONE, faint=True)
    text = spread_text(spread, name)
    if name not in ("return", "cost"):
        return Cell(text)
    return Cell(text, bold=entry.within, best=entry.best and name == "return", faint=not entry.within)


def spread_text(spread: Spread, name: str) -> str:
    """Mean (std) as the paper prints it."""
    if name == "labelled":
        return f"{spread.mean:.0f} ({spread.std:.0f})"
    if name == "accepted":
        return f"{100 * spread.mean:.0f} % ({100 * spread.std:.0f})"
    return f"{spread.mean:.1f} ({spread.std:.1f})"


def middles(tasks: Sequence[Sequence[Group]]) -> Table:
    """Interquartile means over seeds."""
    rows = []
    for own in tasks:
        for place, group in enumerate(own):
            cells = [_estimate(estimate, digits=1) for estimate in _middle(group)]
            rows.append([
                Cell(groups.short(group.task) if not place else ""), Cell(group.name),
                Cell(str(group.scores("cost").size)), *cells,
            ])  # fmt: skip
    return Table("Interquartile mean over seeds", ["task", "method", "seeds", "return", "cost"], rows)


def _middle(group: Group) -> list[Estimate]:
    return [statistics.estimate(statistics.interquartile_mean, group.scores(name)) for name in ("return", "cost")]


def pairs(own: Sequence[Group], wanted: Sequence[tuple[str, str]]) -> list[tuple[Group, Group]]:
    """Groups of a task that are compared. wanted: pairs of titles; every pair if there are none."""
    if not wanted:
        return list(itertools.combinations(own, 2))
    by_title = {group.title: group for group in own}
    return [(by_title[first], by_title[second]) for first, second in wanted if first in by_title and second in by_title]


def improvements(tasks: Sequence[Sequence[Group]], wanted: Sequence[tuple[str, str]] = ()) -> Table:
    """For each pair of methods on a task: how often a seed of the first does better than one of the second."""
    rows = []
    for own in tasks:
        for place, (first, second) in enumerate(pairs(own, wanted)):
            cells = [_estimate(estimate, digits=2) for estimate in _improvement(first, second)]
            task = Cell(groups.short(first.task) if not place else "")
            rows.append([task, Cell(first.name), Cell(second.name), *cells])
    head = ["task", "method", "against", "higher return", "lower cost"]
    return Table("Probability of improvement", head, rows)


def _improvement(first: Group, second: Group) -> list[Estimate]:
    better = statistics.probability_of_improvement
    return [
        statistics.estimate(better, first.scores("return"), second.scores("return")),
        statistics.estimate(better, -first.scores("cost"), -second.scores("cost")),
    ]


def _estimate(estimate: Estimate, digits: int) -> Cell:
    interval = "" if math.isnan(estimate.low) else f" [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
    return Cell(f"{estimate.value:.{digits}f}{interval}")


def markdown(table: Table) -> str:
    """A pipe table below its title."""
    lines = [[escaped_markdown(name) for name in table.head], ["---"] * len(table.head)]
    lines += [[_markdown_cell(cell) for cell in row] for row in table.rows]
    return f"## {escaped_markdown(table.title)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_cell(cell: Cell) -> str:
    text = escaped_markdown(cell.text)
    return (f"**{text}**" if cell.bold else text) + (f" {BEST}" if cell.best else "")


def escaped_markdown(text: str) -> str:
    """Text escaped for Markdown."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def latex(table: Table) -> str:
    """A tabular with booktabs' rules; the best is underlined."""
    body = []
    for place, row in enumerate(table.rows):
        if place and row[0].text:
            body.append(r"\midrule")
        # After `\\`, LaTeX would read a bracket or a star as its argument.
        guard = "{}" if row[0].text.startswith(("[", "*")) else ""
        body.append(f"{guard}{' & '.join(_latex_cell(cell) for cell in row)} \\\\")
    return "\n".join([
        f"% {_latex(table.title)}", f"\\begin{{tabular}}{{{'l' * len(table.head)}}}", r"\toprule",
        f"{' & '.join(_latex(name) for name in table.head)} \\\\", r"\midrule", *body, r"\bottomrule",
        r"\end{tabular}", "",
    ])  # fmt: skip


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    text = f"\\underline{{{text}}}" if cell.best else text
    return f"\\textbf{{{text}}}" if cell.bold else text


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def page(table: Table) -> str:
    """An HTML table. The first cell of a block has its own row, because phones are narrow."""
    columns = len(table.head) - 1
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.head[1:])
    rows = ""
    for row in table.rows:
        if row[0].text:
            rows += f'<tr><th scope="rowgroup" colspan="{columns}"><span>{html.escape(row[0].text)}</span></th></tr>\n'
        rows += f"<tr>{''.join(_page_cell(cell) for cell in row[1:])}</tr>\n"
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"


def _page_cell(cell: Cell) -> str:
    kind = "best" if cell.best else "faint" if cell.faint else "long" if len(cell.text) > _LONG else ""
    text = html.escape(cell.text) + (f" {BEST}" if cell.best else "")
    opening = f'<td class="{kind}">' if kind else "<td>"
    return f"{opening}{f'<b>{text}</b>' if cell.bold else text}</td>"


def results_csv(tasks: Sequence[Sequence[Group]]) -> str:
    """A line for each column of the results, in full precision; empty where there is no value."""
    lines = []
    for own in tasks:
        by_name = {group.name: group for group in own}
        for entry in entries(own):
            group = by_name.get(entry.name)
            line: dict[str, object] = {"task": own[0].task, "method": entry.name, "seeds": entry.seeds}
            line["limit"] = group.limit if group else published.LIMIT
            for name, spread in entry.figures.items():
                line |= {f"{name}_mean": spread.mean, f"{name}_std": spread.std} if spread else {}
            if group:
                for name, estimate in zip(("return", "cost"), _middle(group), strict=True):
                    line |= _columns(f"{name}_iqm", estimate)
            lines.append({**line, "within_limit": entry.within, "best": entry.best})
    head = ["task", "method", "seeds", "limit"]
    head += [f"{name}_{part}" for name in _ROWS for part in ("mean", "std")]
    head += [f"{name}_iqm{part}" for name in ("return", "cost") for part in ("", "_low", "_high")]
    return _csv([*head, "within_limit", "best"], lines)


def improvements_csv(tasks: Sequence[Sequence[Group]], wanted: Sequence[tuple[str, str]] = ()) -> str:
    """A line for each pair of methods that is compared on a task."""
    lines: list[dict[str, object]] = [
        {"task": first.task, "method": first.name, "against": second.name}
        | _columns("higher_return", higher)
        | _columns("lower_cost", lower)
        for own in tasks
        for first, second in pairs(own, wanted)
        for higher, lower in [_improvement(first, second)]
    ]
    head = [f"{name}{part}" for name in ("higher_return", "lower_cost") for part in ("", "_low", "_high")]
    return _csv(["task", "method", "against", *head], lines)


def _columns(name: str, estimate: Estimate) -> dict[str, object]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _csv(head: Sequence[str], lines: Sequence[dict[str, object]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, head, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_value(value) for name, value in line.items()} for line in lines)
    return file.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(float(value))
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
