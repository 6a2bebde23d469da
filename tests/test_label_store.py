"""Clips and answers in labels.db: nothing lost, nothing doubled, nothing asked twice; and how answers agree."""

import json
import math
import threading

import numpy as np
import pytest

from traces_jax.host import errors
from traces_jax.host.label import agreement, exchange, store
from traces_jax.host.label.store import Identity, Said, Store

POSITIONS = np.arange(20, dtype=np.float32).reshape(10, 2)


def clip(number, lane="seed=0"):
    return Identity(lane, iteration=number, environment=0, first=0)


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "UNDO_SECONDS", 0.0)
    made = Store(tmp_path)
    made.describe(nq=2, repeats=0.0)
    yield made
    made.close()


def ask(base, count):
    base.ask([(clip(number), POSITIONS, 10) for number in range(count)])
    return [clip(number) for number in range(count)]


def label(base, annotator, said, replays=0):
    (item,) = base.next(annotator, 1)
    base.answer(item.id, annotator, said, replays)
    return item


def test_answers_are_taken_once_all_are_there(base):
    clips = ask(base, 2)
    assert base.take(clips) is None
    label(base, "ann", Said("accept"))
    assert base.take(clips) is None and base.take(clips[:1]) == [[Said("accept")]]
    label(base, "ann", Said("from", 7))
    assert base.take(clips) == [[Said("accept")], [Said("from", 7)]]
    assert base.counts("ann") == {"open": 0, "left": 0, "answered": 2, "yours": 2}


def test_what_is_left_for_whom(base):
    """Two have to label each of two clips; one of them has labelled both, the other has labelled one."""
    ask(base, 2)
    base.describe(each=2)
    for _ in range(2):
        label(base, "ann", Said("accept"))
    label(base, "bob", Said("reject"))
    assert base.counts("ann") == {"open": 1, "left": 0, "answered": 1, "yours": 2}
    assert base.counts("bob") == {"open": 1, "left": 1, "answered": 1, "yours": 1}
    assert base.counts("eve") == {"open": 1, "left": 1, "answered": 1, "yours": 0}


def test_the_same_clip_is_not_asked_for_twice(base):
    clips = ask(base, 1)
    first = label(base, "ann", Said("reject"))
    ask(base, 1)  # A trainer that was killed repeats its iteration.
    assert base.next("ann", 3) == base.next("bob", 3) == []
    assert base.take(clips) == base.take(clips) == [[Said("reject")]]
    _, positions = base.positions(first.id)
    np.testing.assert_array_equal(positions, POSITIONS)


def test_what_was_given_and_not_answered_is_given_again(base):
    ask(base, 5)
    before = base.next("ann", 3)
    assert base.next("ann", 3) == before
    base.answer(before[0].id, "ann", Said("accept"), 0)
    assert base.next("ann", 2) == before[1:]


def test_each_clip_goes_to_one_annotator_unless_asked_otherwise(base, monkeypatch):
    ask(base, 4)
    ann, bob = base.next("ann", 2), base.next("bob", 3)
    assert len(ann) == 2 and len(bob) == 2, "four clips are there"
    base.describe(each=2)
    assert len(base.next("bob", 4)) == 4
    # Whoever does not answer for long loses the clip to others.
    base.describe(each=1)
    assert base.next("cid", 4) == []
    monkeypatch.setattr(store, "_RESERVED", -1.0)
    assert len(base.next("cid", 4)) == 4


def test_two_annotators_at_once_never_get_the_same_clip(tmp_path, base):
    ask(base, 30)
    given: dict[str, list] = {}

    def work(name):
        own = Store(tmp_path)
        given[name] = [item.id for _ in range(15) if (item := label(own, name, Said("accept")))]
        own.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = base.rows()
    assert len(rows) == 30 == len({row["iteration"] for row in rows})


def test_an_answer_is_written_once(base):
    ask(base, 1)
    (item,) = base.next("ann", 1)
    base.answer(item.id, "ann", Said("from", 3), 2)
    base.answer(item.id, "ann", Said("from", 3), 2)  # A page that did not hear of its success sends again.
    with pytest.raises(store.Refused, match="labelled already"):
        base.answer(item.id, "ann", Said("accept"), 0)
    with pytest.raises(store.Refused, match="not given to you"):
        base.answer(item.id, "bob", Said("accept"), 0)
    assert [(row["verdict"], row["step"], row["replays"]) for row in base.rows()] == [("from", 3, 2)]


def test_a_step_that_the_clip_does_not_have(base):
    ask(base, 1)
    (item,) = base.next("ann", 1)
    with pytest.raises(store.Refused, match="no such step"):
        base.answer(item.id, "ann", Said("from", 10), 0)


def test_the_last_answer_can_be_undone_until_it_is_taken(base, monkeypatch):
    clips = ask(base, 2)
    label(base, "ann", Said("accept"))
    second = label(base, "ann", Said("accept"))
    assert base.undo("ann").id == second.id
    assert base.next("ann", 1)[0].id == second.id, "it comes first again"
    base.answer(second.id, "ann", Said("reject"), 0)
    monkeypatch.setattr(store, "UNDO_SECONDS", 60.0)
    assert base.take(clips) is None, "answers wait, so that they can be undone"
    monkeypatch.setattr(store, "UNDO_SECONDS", 0.0)
    assert base.take(clips) is not None
    with pytest.raises(store.Refused, match="learner has this answer"):
        base.undo("ann")
    with pytest.raises(store.Refused, match="nothing to undo"):
        base.undo("bob")


def test_hidden_repeats(base):
    """One in twenty, of a clip seen some time before; they are no labels."""
    base.describe(repeats=0.05)
    clips = ask(base, 60)
    shown = []
    while items := base.next("ann", 1):
        base.answer(items[0].id, "ann", Said("accept"), 0)
        shown.append(base.rows()[-1])
    again = [place for place, row in enumerate(shown) if row["repeat"]]
    assert len(shown) == 63 and len(again) == 3
    for place in again:
        first = next(other for other, row in enumerate(shown) if row["iteration"] == shown[place]["iteration"])
        assert place - first > 5
    assert all(len(answers) == 1 for answers in base.take(clips))


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "labels.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.UserError, match="is a link"):
        Store(tmp_path)


# --- Agreement.


def test_kappa_by_hand():
    """20 both say yes, 15 both no, 5 and 10 differ: observed 0.7, by chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    found = agreement.agreement(pairs)
    assert (found.count, found.share, found.kappa) == (50, 0.7, pytest.approx(0.4))
    assert math.isnan(agreement.agreement([(True, True)]).kappa), "two judges who always say the same"
    assert agreement.agreement([]).count == 0


def row(clip, annotator, verdict, repeat=0):
    return {
        **{"lane": "a", "iteration": clip, "environment": 0, "first": 0, "annotator": annotator},
        **{"verdict": verdict, "repeat": repeat},
    }


def test_a_noisy_annotator_is_seen():
    rows = [row(n, "ann", "accept" if n % 2 else "from") for n in range(10)]
    rows += [row(n, "ann", "accept" if n % 2 else "reject", repeat=1) for n in range(4)]
    rows += [row(n, "bob", "accept") for n in range(9)] + [row(9, "bob", "unsure")]
    rows += [row(n, "bob", "reject", repeat=1) for n in range(2)]
    found = agreement.summary(rows)
    ann, bob = found["annotators"]
    assert ann["self"] == {"count": 4, "share": 1.0, "kappa": 1.0}
    assert bob["self"] == {"count": 2, "share": 0.0, "kappa": 0.0} and bob["unsure"] == 1
    (pair,) = found["pairs"]
    assert pair["names"] == ["ann", "bob"] and pair["count"] == 9 and pair["share"] == pytest.approx(4 / 9)
    assert pair["kappa"] == pytest.approx(0.0)
    json.dumps(found, allow_nan=False)
    assert agreement.sentences(rows) == [
        "ann labelled 10 clips, 4 of 4 the same (kappa 1.00) when shown again",
        "bob labelled 10 clips, 0 of 2 the same (kappa 0.00) when shown again",
        "ann and bob agree: 4 of 9 the same (kappa 0.00)",
    ]


# --- Files.


def test_export_and_import(tmp_path, base):
    ask(base, 3)
    for said in (Said("accept"), Said("from", 4), Said("unsure")):
        label(base, "ann", said)
    exchange.write(tmp_path / "labels.jsonl", base.rows(), task="T")
    rows = exchange.read(tmp_path / "labels.jsonl")
    assert {one["task"] for one in rows} == {"T"}
    assert store.read_rows(tmp_path) == base.rows() and store.read_rows(tmp_path / "nowhere") == []
    assert exchange.clips(rows) == {clip(0): [Said("accept")], clip(1): [Said("from", 4)], clip(2): [Said("unsure")]}
    (tmp_path / "other").mkdir()
    other = Store(tmp_path / "other")
    assert other.add(rows) == 3 and other.add(rows) == 0, "what is there already is not added again"
    ask(other, 3)
    assert other.next("bob", 3) == [], "the run asks for nothing that was labelled elsewhere"
    assert other.take([clip(1)]) == [[Said("from", 4)]]
    other.close()


LINE = {"lane": "seed=0", "iteration": 0, "environment": 0, "first": 0, "verdict": "accept"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[]", "it is no JSON object"),
        ("{", "Expecting property name"),
        ("[" * 3000, "recursion"),
        ('"' + "x" * 5000 + '"', "more than 4096 characters"),
        (json.dumps({**LINE, "version": 9}), "version 9 is unknown; 1 would be right"),
        (json.dumps({**LINE, "verdict": "maybe"}), "verdict 'maybe' is not one of accept, reject, from, unsure"),
        (json.dumps({**LINE, "verdict": "from"}), "step None is not right"),
        (json.dumps({**LINE, "step": 3}), "step 3 is not right"),
        (json.dumps({**LINE, "iteration": -1}), "iteration -1 is not right"),
        (json.dumps({**LINE, "lane": 4}), "lane 4 is not right"),
        (json.dumps({**LINE, "annotator": 4}), "annotator must be text"),
        (json.dumps({"episode": True, "verdict": "accept"}), "episode True is not right"),
    ],
    ids=range(12),
)
def test_lines_that_are_not_right(tmp_path, line, says):
    (tmp_path / "a.jsonl").write_text(json.dumps(LINE) + "\n" + line)
    with pytest.raises(errors.UserError, match="line 2") as caught:
        exchange.read(tmp_path / "a.jsonl")
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_short_line_is_enough(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(LINE) + "\n\n" + json.dumps({"episode": 3, "verdict": "reject"}))
    rows = exchange.read(tmp_path / "a.jsonl")
    assert exchange.clips(rows) == {clip(0): [Said("accept")]}
    assert exchange.episodes(rows) == {3: [Said("reject")]}
