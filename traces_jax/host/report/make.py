"""From run folders to a report folder."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import rich.console
import rich.progress

from traces_jax.host import errors, files
from traces_jax.host.label import agreement, store
from traces_jax.host.report import canvas, groups, origins, page, pictures, read, tables
from traces_jax.host.report.groups import Group
from traces_jax.host.report.read import Lane
from traces_jax.host.study import record

Item = TypeVar("Item")
_FILES = ("index.html", "results.md", "results.tex", "results.csv", "improvement.csv", "pictures")
_PREAMBLE = "% Needs \\usepackage{booktabs}.\n"
_RUNS = "The command that began each run, its commit, and the policies that were evaluated."
_MIDDLE = "Mean of the middle half of the seeds, with the 95 % interval of a bootstrap over seeds."
_IMPROVEMENT = (
    "Probability that a seed of the first does better than a seed of the second, ties counting half, with the 95 % "
    "bootstrap interval over seeds."
)


def make(folders: Sequence[pathlib.Path], out: pathlib.Path) -> None:
    """Reads all runs, draws all plots, writes the report. Nothing is written if no run can be read."""
    check_out(out)
    console = rich.console.Console()
    runs, wanted = _runs(folders)
    lanes, known, notes = _read(runs, console)
    if not lanes:
        others = f", nor in {len(folders) - 1} others" if len(folders) > 1 else ""
        raise errors.UserError(f"there is no run to report on in {folders[-1]} ({notes[-1][1]}){others}.")
    grouped, repeated = groups.make(lanes)
    tasks = [list(own) for _, own in itertools.groupby(grouped, key=lambda group: group.task)]
    listed = list_notes([*notes, *repeated])
    contents = _contents(
        tasks, wanted, _draw(tasks, console), runs=origins.table(known), summary=_summary(lanes), notes=listed
    )
    _write(out, contents)
    for note in listed:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _contents(
    tasks: Sequence[Sequence[Group]],
    wanted: Sequence[tuple[str, str]],
    sections: Sequence[page.Section],
    *,
    runs: tables.Table,
    summary: str,
    notes: Sequence[str],
) -> dict[str, str | bytes]:
    """The files of a report: name -> content.

    wanted: pairs that are compared; every pair if there are none. runs: where the numbers come from.
    """
    evaluated = tables.evaluated(tasks)
    results = tables.results(evaluated)
    middles, improvements = tables.middles(evaluated), tables.improvements(evaluated, wanted)
    every = [table for table in (*results, middles, improvements) if table.rows]
    markdown = [f"# Runs of traces_jax\n\n{summary}\n", *map(tables.markdown, [*every, runs])]
    if notes:
        markdown.append("## Notes\n\n" + "".join(f"* {tables.escaped_markdown(note)}\n" for note in notes))
    files_of_pictures: dict[str, str | bytes] = {}
    for picture in (picture for section in sections for picture in section.pictures):
        files_of_pictures |= {
            f"pictures/{picture.name}.svg": canvas.adaptive(picture),
            f"pictures/{picture.name}.png": picture.png,
        }
    return {
        "index.html": page.render(
            summary=summary,
            results=results,
            more=[(middles, _MIDDLE), (improvements, _IMPROVEMENT), (runs, _RUNS)],
            sections=sections,
            notes=notes,
        ),
        "results.md": "\n".join(markdown),
        "results.tex": "\n".join([_PREAMBLE, *map(tables.latex, every)]),
        "results.csv": tables.results_csv(evaluated),
        "improvement.csv": tables.improvements_csv(evaluated, wanted),
        **files_of_pictures,
    }


def _write(out: pathlib.Path, contents: Mapping[str, str | bytes]) -> None:
    with files.folder_beside(out) as folder:
        (folder / "pictures").mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def check_out(out: pathlib.Path) -> None:
    """Refuses a folder with anything but an older report, because its content would be lost."""
    files.check_can_write(out)
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        kind = "a file" if os.path.exists(out) else "a link that leads nowhere"
        raise errors.UserError(f"--out={out} is {kind}; give a folder.")
    try:
        others = [path.name for path in out.iterdir() if path.name not in _FILES]
        drawn = list((out / "pictures").iterdir()) if (out / "pictures").is_dir() else []
    except OSError as error:
        raise errors.UserError(f"--out={out} cannot be read: {error.strerror}.") from None
    others += [f"pictures/{path.name}" for path in drawn if path.suffix not in (".svg", ".png")]
    if others:
        raise errors.UserError(f"--out={out} holds {others[0]!r}, which is no part of a report; give another folder.")


def list_notes(notes: Iterable[tuple[str, str]]) -> list[str]:
    """notes: (folder, text). Folders with the same note share a line."""
    folders: dict[str, list[str]] = {}
    for folder, text in notes:
        folders.setdefault(text, []).append(folder)
    return [f"{', '.join(names)}: {text}." for text, names in folders.items()]


def _runs(folders: Sequence[pathlib.Path]) -> tuple[dict[pathlib.Path, str | None], list[tuple[str, str]]]:
    """Run folders with what a study calls them, those of studies among them; and pairs that studies compare."""
    runs: dict[pathlib.Path, str | None] = {}
    wanted: list[tuple[str, str]] = []
    for folder in folders:
        found = record.read(folder)
        if found is None:
            runs.setdefault(folder)
        else:
            runs |= found.runs
            wanted += found.compare
    return runs, wanted


def _read(
    runs: Mapping[pathlib.Path, str | None], console: rich.console.Console
) -> tuple[list[Lane], list[origins.Origin], list[tuple[str, str]]]:
    lanes: list[Lane] = []
    known: list[origins.Origin] = []
    notes: list[tuple[str, str]] = []
    once = list({os.path.realpath(folder): folder for folder in runs}.values())
    for folder, name in _track("reading run folders:", list(zip(once, _names(once), strict=True)), console):
        label = runs[folder]
        if label is not None and not folder.exists():
            notes.append((name, "has not begun"))
            continue
        found, said = read.read(folder, name)
        lanes += [dataclasses.replace(lane, label=label) for lane in found]
        known += [origins.find(folder, name, found)] if found else []
        notes += [(name, text) for text in said]
        try:
            labelled = agreement.sentences(store.read_rows(folder))
        except errors.UserError as error:
            labelled = [str(error).rstrip(".")]
        notes += [(name, read.printable(text)) for text in labelled]
    return lanes, known, notes


def _names(folders: Sequence[pathlib.Path]) -> list[str]:
    """The folders' own names, or their paths where two have the same name."""
    names = [os.path.basename(os.path.realpath(folder)) for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    return [read.printable(name) for name in names]


def _draw(tasks: Sequence[Sequence[Group]], console: rich.console.Console) -> list[page.Section]:
    stems: list[str] = []
    for own in tasks:
        stem = canvas.slug(groups.short(own[0].task))[:60]
        # Names of different tasks may have the same slug.
        stems.append(stem if stem not in stems else f"{stem}-{len(stems)}")
    plans = [(own, plan) for own, stem in zip(tasks, stems, strict=True) for plan in pictures.plan(own, stem)]
    sections = {
        own[0].task: page.Section(groups.short(own[0].task), [], [group.name for group in own]) for own in tasks
    }
    with canvas.style():
        for own, plan in _track("drawing pictures:", plans, console):
            sections[own[0].task].pictures.append(canvas.draw(plan))
    return [section for section in sections.values() if section.pictures]


def _track(what: str, items: Sequence[Item], console: rich.console.Console) -> Iterable[Item]:
    """Shows progress: a bar on a terminal, a line elsewhere."""
    if not console.is_terminal:
        print(f"{what} {len(items)}", flush=True)
    return rich.progress.track(items, what, console=console, transient=True, disable=not console.is_terminal)


def _summary(lanes: Sequence[Lane]) -> str:
    counts = [
        (len({lane.run for lane in lanes}), "run"),
        (len(lanes), "lane"),
        (len({lane.task for lane in lanes}), "task"),
    ]
    return ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts) + "."
