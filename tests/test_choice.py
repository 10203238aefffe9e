"""Which epoch is the best, and when a stage ends early: pure decisions of the trainer."""

from types import SimpleNamespace

import pytest

from finite import config as settings
from finite.training.trainer import Session, better

def test_patience_counts_epochs_since_the_best_of_the_stage_and_a_score_that_is_no_number_is_none():
    stage = settings.Stage(name="a", epochs=9, learning_rate=1, patience=3)
    session = SimpleNamespace(stage_best={"score": "nan", "age": 0}, run=SimpleNamespace(position=SimpleNamespace(epoch=0)))
    nan = float("nan")
    scores = [nan, 0.3, 0.2, 0.3, 0.4, nan, 0.4, 0.1]
    assert [Session.stage_over(session, stage, score) for score in scores] == [False] * 7 + [True]
    assert session.stage_best == {"score": 0.4, "age": 3}
    session.run.position.epoch = 8  # the last one ends by itself
    assert not Session.stage_over(session, stage, 0.1)


@pytest.mark.parametrize("score, best, replaces", [
    (0.5, None, True),
    (0.5, 0.4, True),
    (0.5, 0.5, True),  # the later of equals has trained longer
    (0.4, 0.5, False),
    (float("nan"), 0.1, False),
    (float("nan"), "nan", False),
    (0.1, "nan", True),  # as a checkpoint's JSON holds it
    (0.1, float("nan"), True),
])
def test_nan_is_never_best(score, best, replaces):
    before = None if best is None else {"score": best, "terms": ["class"]}
    assert better(score, ["class"], before) is replaces


def test_score_over_other_terms_starts_anew():
    assert better(0.1, ["box", "class"], {"score": 0.9, "terms": ["class"]})
