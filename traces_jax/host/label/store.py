"""Clips and answers in a run folder: labels.db, the only file that uses SQLite.

The trainer adds clips and takes answers; the server hands clips out and writes answers. Each change is one transaction,
so that a process killed at any moment loses nothing that it has acknowledged. A clip is identified by where it came
from, so that a trainer that repeats an iteration asks for nothing twice.
"""

import contextlib
import dataclasses
import pathlib
import random
import sqlite3
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from traces_jax.host import errors

NAME = "labels.db"
ACCEPT, REJECT, FROM, UNSURE = "accept", "reject", "from", "unsure"
VERDICTS = (ACCEPT, REJECT, FROM, UNSURE)
# Seconds for which a clip is reserved for the annotator who was given it.
_RESERVED = 120.0
# Seconds before an answer is given to the learner. Until then it can be undone.
UNDO_SECONDS = 2.0
# A repeat is shown after at least this many other clips.
_APART = 5
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS clips (
  id INTEGER PRIMARY KEY, lane TEXT NOT NULL, iteration INTEGER NOT NULL, environment INTEGER NOT NULL,
  first INTEGER NOT NULL, length INTEGER, positions BLOB, asked_at REAL, taken_at REAL,
  UNIQUE (lane, iteration, environment, first)
);
CREATE TABLE IF NOT EXISTS showings (
  id TEXT PRIMARY KEY, clip INTEGER NOT NULL REFERENCES clips, annotator TEXT NOT NULL, repeat INTEGER NOT NULL,
  shown_at REAL NOT NULL, answered_at REAL, verdict TEXT, step INTEGER, replays INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS showings_by_clip ON showings (clip);
CREATE INDEX IF NOT EXISTS showings_by_annotator ON showings (annotator);
"""
_ROWS = """
SELECT showings.id AS id, lane, iteration, environment, first, length, annotator, repeat, verdict, step, shown_at,
  answered_at, replays
FROM showings JOIN clips ON clips.id = clip WHERE answered_at IS NOT NULL ORDER BY answered_at, showings.id
"""


@dataclasses.dataclass(frozen=True)
class Identity:
    """Where a clip comes from: lane, iteration, environment, and first step of the rollout."""

    lane: str
    iteration: int
    environment: int
    first: int


@dataclasses.dataclass(frozen=True)
class Said:
    """An answer. step: the first violating one, for the verdict "from" only."""

    verdict: str
    step: int | None = None


@dataclasses.dataclass(frozen=True)
class Item:
    """A clip as it is handed out. id: a random name, which tells nothing about the clip; length: steps."""

    id: str
    length: int


class Refused(Exception):
    """Why an answer or an undo is not possible, in one sentence."""


class Store:
    """An open labels.db. Every thread needs its own."""

    def __init__(self, folder: pathlib.Path):
        path = folder / NAME
        if path.is_symlink():
            raise errors.UserError(f"{path} is a link; the file itself must be there.")
        try:
            # Transactions are opened explicitly.
            self._base = sqlite3.connect(path, timeout=30.0, isolation_level=None)
            self._base.row_factory = sqlite3.Row
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=FULL")
            self._base.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise errors.UserError(f"{path} cannot be used: {error}.") from None

    def close(self) -> None:
        """Closes the file."""
        self._base.close()

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction; it begins by locking out other writers."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield self._base
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    # --- Facts about the run, for the server.

    def describe(self, **facts: Any) -> None:
        """Notes facts: bytes, text or numbers by name."""
        with self._change() as base:
            base.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", list(facts.items()))

    def fact(self, name: str, default: Any = None) -> Any:
        """A fact that was noted."""
        found = self._base.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return default if found is None else found["value"]

    # --- The trainer's side.

    def ask(self, clips: Sequence[tuple[Identity, np.ndarray | None, int]]) -> None:
        """Adds clips that are not there yet: identity, positions [T, nq] or None, length."""
        with self._change() as base:
            for identity, positions, length in clips:
                packed = None if positions is None else zlib.compress(positions.astype(np.float32).tobytes(), 1)
                base.execute(
                    "INSERT INTO clips (lane, iteration, environment, first, length, positions, asked_at) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "length = excluded.length, positions = coalesce(positions, excluded.positions), "
                    "asked_at = coalesce(asked_at, excluded.asked_at)",
                    (*dataclasses.astuple(identity), length, packed, time.time()),
                )

    def take(self, identities: Sequence[Identity]) -> list[list[Said]] | None:
        """The answers to these clips, once all of them are there and can no longer be undone; None before.

        What was taken once is taken again unchanged.
        """
        with self._change() as base:
            found = [self._answers(base, identity) for identity in identities]
            if any(answers is None for answers in found):
                return None
            base.executemany(
                "UPDATE clips SET taken_at = coalesce(taken_at, ?) "
                "WHERE lane = ? AND iteration = ? AND environment = ? AND first = ?",
                [(time.time(), *dataclasses.astuple(identity)) for identity in identities],
            )
        return [answers or [] for answers in found]

    def _answers(self, base: sqlite3.Connection, identity: Identity) -> list[Said] | None:
        rows = base.execute(
            "SELECT verdict, step, answered_at, taken_at FROM showings JOIN clips ON clips.id = clip "
            "WHERE lane = ? AND iteration = ? AND environment = ? AND first = ? "
            "AND NOT repeat AND answered_at IS NOT NULL ORDER BY answered_at, showings.id",
            dataclasses.astuple(identity),
        ).fetchall()[: self._each()]
        if not rows or rows[0]["taken_at"] is None:
            final = len(rows) == self._each() and rows[-1]["answered_at"] <= time.time() - UNDO_SECONDS
            if not final:
                return None
        return [
            Said(row["verdict"], row["step"])
            for row in rows
            if row["taken_at"] is None or row["answered_at"] <= row["taken_at"]
        ]

    def _each(self) -> int:
        return int(self.fact("each", 1))

    # --- The annotators' side.

    def next(self, annotator: str, count: int) -> list[Item]:
        """Up to `count` clips, reserved for a while. Those that were given before and are not answered come first."""
        now = time.time()
        with self._change() as base:
            rows = base.execute(
                "SELECT showings.id, length FROM showings JOIN clips ON clips.id = clip "
                "WHERE annotator = ? AND answered_at IS NULL AND (repeat OR taken_at IS NULL) "
                "ORDER BY shown_at, showings.rowid LIMIT ?",
                (annotator, count),
            ).fetchall()
            items = [Item(row["id"], row["length"]) for row in rows]
            base.executemany("UPDATE showings SET shown_at = ? WHERE id = ?", [(now, item.id) for item in items])
            while len(items) < count:
                chosen = self._repeat(base, annotator) or self._fresh(base, annotator, now)
                if chosen is None:
                    break
                clip, length, repeat = chosen
                items.append(Item(uuid.uuid4().hex, length))
                base.execute(
                    "INSERT INTO showings (id, clip, annotator, repeat, shown_at) VALUES (?, ?, ?, ?, ?)",
                    (items[-1].id, clip, annotator, repeat, now),
                )
        return items

    def _fresh(self, base: sqlite3.Connection, annotator: str, now: float) -> tuple[int, int, int] | None:
        """A clip that too few have labelled, of the oldest query; in random order, so that seeds are mixed."""
        found = base.execute(
            "SELECT id, length FROM clips WHERE taken_at IS NULL AND positions IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM showings WHERE clip = clips.id AND annotator = ?) "
            "AND (SELECT count(*) FROM showings WHERE clip = clips.id AND NOT repeat "
            "     AND (answered_at IS NOT NULL OR shown_at > ?)) < ? "
            "ORDER BY iteration, random() LIMIT 1",
            (annotator, now - _RESERVED, self._each()),
        ).fetchone()
        return None if found is None else (found["id"], found["length"], 0)

    def _repeat(self, base: sqlite3.Connection, annotator: str) -> tuple[int, int, int] | None:
        """A clip that this annotator has labelled before, if a repeat is due."""
        share = float(self.fact("repeats", 0.05))
        rows = base.execute(
            "SELECT clip, length, repeat, verdict, positions IS NOT NULL AS drawable FROM showings "
            "JOIN clips ON clips.id = clip WHERE annotator = ? ORDER BY answered_at IS NULL, answered_at",
            (annotator,),
        ).fetchall()
        repeated = {row["clip"] for row in rows if row["repeat"]}
        if len(repeated) >= int(share * (len(rows) - len(repeated)) + 0.5):
            return None
        known = [row for row in rows if not row["repeat"]][:-_APART]
        known = [r for r in known if r["drawable"] and r["verdict"] not in (None, UNSURE) and r["clip"] not in repeated]
        if not known:
            return None
        chosen = random.choice(known)
        return chosen["clip"], chosen["length"], 1

    def answer(self, showing: str, annotator: str, said: Said, replays: int) -> None:
        """Writes an answer. The same answer again is accepted and changes nothing."""
        with self._change() as base:
            row = base.execute(
                "SELECT verdict, step, answered_at, length FROM showings JOIN clips ON clips.id = clip "
                "WHERE showings.id = ? AND annotator = ?",
                (showing, annotator),
            ).fetchone()
            if row is None:
                raise Refused("This clip was not given to you.")
            if row["answered_at"] is not None:
                if (row["verdict"], row["step"]) == (said.verdict, said.step):
                    return
                raise Refused("This clip is labelled already.")
            if said.step is not None and not 0 <= said.step < row["length"]:
                raise Refused("The clip has no such step.")
            base.execute(
                "UPDATE showings SET verdict = ?, step = ?, replays = ?, answered_at = ? WHERE id = ?",
                (said.verdict, said.step, replays, time.time(), showing),
            )

    def undo(self, annotator: str) -> Item:
        """Takes the annotator's last answer back. Returns its clip."""
        with self._change() as base:
            row = base.execute(
                "SELECT showings.id, length, repeat, taken_at FROM showings JOIN clips ON clips.id = clip "
                "WHERE annotator = ? AND answered_at IS NOT NULL ORDER BY answered_at DESC LIMIT 1",
                (annotator,),
            ).fetchone()
            if row is None:
                raise Refused("There is nothing to undo.")
            if row["taken_at"] is not None and not row["repeat"]:
                raise Refused("The learner has this answer already.")
            # The oldest time: the clip comes first again.
            base.execute(
                "UPDATE showings SET verdict = NULL, step = NULL, answered_at = NULL, shown_at = 0 WHERE id = ?",
                (row["id"],),
            )
        return Item(row["id"], row["length"])

    def positions(self, showing: str) -> tuple[int, np.ndarray] | None:
        """Number and positions [T, nq] of the clip behind a showing; None if there is none."""
        row = self._base.execute(
            "SELECT clips.id, length, positions FROM showings JOIN clips ON clips.id = clip WHERE showings.id = ?",
            (showing,),
        ).fetchone()
        if row is None or row["positions"] is None:
            return None
        flat = np.frombuffer(zlib.decompress(row["positions"]), np.float32)
        return row["id"], flat.reshape(-1, int(self.fact("nq")))[: row["length"]]

    def counts(self, annotator: str) -> dict[str, int]:
        """How many clips wait for answers now, by anybody and by this annotator, and how many have answers.

        open: clips that too few have labelled; left: those of them that this annotator can label; answered: clips that
        enough have labelled; yours: clips that this annotator has.
        """
        enough = (
            "(SELECT count(*) FROM showings WHERE clip = clips.id AND NOT repeat AND answered_at IS NOT NULL) >= :each"
        )
        own = (
            "EXISTS (SELECT 1 FROM showings WHERE clip = clips.id AND annotator = :annotator AND NOT repeat "
            "AND answered_at IS NOT NULL)"
        )
        waiting = f"taken_at IS NULL AND asked_at IS NOT NULL AND NOT {enough}"
        found = self._base.execute(
            f"SELECT total({waiting}) AS open, total({waiting} AND NOT {own}) AS left, total({enough}) AS answered, "
            f"total({own}) AS yours FROM clips",
            {"each": self._each(), "annotator": annotator},
        ).fetchone()
        return {name: int(value) for name, value in dict(found).items()}

    # --- Everything, for export, agreement and import.

    def rows(self) -> list[dict[str, Any]]:
        """Every answer with its clip, in the order of the answers."""
        return [dict(row) for row in self._base.execute(_ROWS)]

    def add(self, rows: Sequence[dict[str, Any]]) -> int:
        """Adds answers made elsewhere, all or none. Returns how many were new."""
        added = 0
        with self._change() as base:
            for row in rows:
                where = tuple(row[name] for name in ("lane", "iteration", "environment", "first"))
                base.execute(
                    "INSERT OR IGNORE INTO clips (lane, iteration, environment, first, length) VALUES (?, ?, ?, ?, ?)",
                    (*where, row.get("length")),
                )
                (clip,) = base.execute(
                    "SELECT id FROM clips WHERE lane = ? AND iteration = ? AND environment = ? AND first = ?", where
                ).fetchone()
                added += base.execute(
                    "INSERT OR IGNORE INTO showings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(row["id"], clip, row["annotator"], row["repeat"], row["shown_at"], row["answered_at"]),
                        *(row["verdict"], row["step"], row["replays"]),
                    ),
                ).rowcount
        return added


def read_rows(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Every answer in a run folder, without changing anything there; none if nobody labelled."""
    path = folder / NAME
    try:
        if path.is_symlink() or not path.is_file():
            return []
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
            base.row_factory = sqlite3.Row
            return [dict(row) for row in base.execute(_ROWS)]
    except OSError:
        return []  # A name that leads nowhere, such as one that is too long.
    except sqlite3.Error as error:
        raise errors.UserError(f"{path} cannot be read: {error}.") from None
