"""The report vector: every block is where the layout says, and a vector of another length is never read."""

import numpy as np
import pytest

from finite.guard.report import GIVEN, HEAD, Layout, StepReport

LAYOUT = Layout(("class", "box"), ("image", "box"), ("a.weight", "b.weight", "b.bias"), ("norm.moving_mean",),
                ("features", "logits"), {"backbone": (0,), "head": (1, 2), "neck": ()}, 4, (True, True))
SIZE = 3 + 5 + 2 + 2 + 2 + 2 + 8 + 8 + 8 + 3 + 3 + 1 + 2 + 2 + 2


def report(**blocks):
    """A report of zeros but for these blocks."""
    held = LAYOUT.unpack(np.zeros(SIZE, np.float32)) | {name: np.asarray(b, np.float32) for name, b in blocks.items()}
    return StepReport(5, LAYOUT, (10, 11, 12, 13), held, 0.1)


def test_blocks_cover_the_vector_in_order_without_gap_or_overlap():
    blocks = LAYOUT.unpack(np.arange(SIZE, dtype=np.float32))
    assert np.array_equal(np.concatenate([b.reshape(-1) for b in blocks.values()]), np.arange(SIZE))
    assert {name: b.shape for name, b in blocks.items()} == dict(LAYOUT.blocks())
    assert blocks["given"][0] == 0 and blocks["head"][0] == 3 and blocks["raw"][0] == 8
    assert np.array_equal(blocks["values"], [[16, 17, 18, 19], [20, 21, 22, 23]])  # a row per term


def test_vector_of_another_length_is_refused():
    for size in (0, 1, SIZE - 1, SIZE + 1, 2 * SIZE):
        with pytest.raises(ValueError):
            LAYOUT.unpack(np.zeros(size, np.float32))


def test_layout_without_statistics_has_no_numbers_for_them():
    layout = Layout(("class",), ("image",), ("a",), (), ("logits",), {"all": (0,)}, 2, (True,))
    size = sum(int(np.prod(shape)) for _, shape in layout.blocks())
    blocks = layout.unpack(np.arange(size, dtype=np.float32))
    assert blocks["statistics_bad"].size == 0
    assert np.array_equal(blocks["point_largest"], [size - 1])


def test_head_is_read_by_name_and_other_names_are_unknown():
    made = report(head=np.arange(len(HEAD)), given=np.arange(10, 10 + len(GIVEN)))
    assert [getattr(made, name) for name in HEAD] == list(range(len(HEAD)))
    assert [getattr(made, name) for name in GIVEN] == list(range(10, 10 + len(GIVEN)))
    assert type(made.norm) is float
    with pytest.raises(AttributeError):
        made.nrom


def test_step_is_good_only_when_the_graph_says_so():
    head = np.zeros(len(HEAD), np.float32)
    assert not report(head=head).good
    head[HEAD.index("ok")] = 1
    assert report(head=head).good
    head[HEAD.index("ok")] = np.nan
    assert not report(head=head).good


def test_bad_cells_are_those_that_are_not_finite_and_count():
    values = [[np.nan, 1, np.inf, 2], [1, -np.inf, 1, np.nan]]
    made = report(values=values, weights=[[1, 1, 0, 1], [1, 0.5, 1, 0]])
    assert made.table_bad().tolist() == [[True, False, False, False], [False, True, False, False]]
    assert made.table_bad().any(1).all()
    assert not report(values=values, weights=np.zeros((2, 4))).table_bad().any()


def test_flags_are_told_by_name():
    made = report(input_bad=[[0, 1, 0, 0], [0, 1, 0, 1]], square_sum=[0, np.inf, np.nan], statistics_bad=[3],
                  point_sum=[0, np.nan])
    assert made.bad_fields() == [("image", 1), ("box", 1), ("box", 3)]
    assert made.bad_gradients() == ["b.weight", "b.bias"]
    assert made.bad_statistics() == ["norm.moving_mean"]
    assert made.bad_points() == ["logits"]
    clean = report()
    assert not (clean.bad_fields() or clean.bad_gradients() or clean.bad_statistics() or clean.bad_points())


@pytest.mark.parametrize(("rate", "bad"), [(0.0, False), (0.1, False), (-1.0, True), (np.nan, True), (np.inf, True)])
def test_rate_is_bad_when_no_step_would_take_it(rate, bad):
    assert report(given=[rate, 1, np.inf]).rate_bad is bad


def test_norms_of_parts_are_those_of_their_parameters():
    norms = report(square_sum=[np.inf, 9, 16]).part_norms()
    assert norms == {"backbone": np.inf, "head": 5.0, "neck": 0.0}  # one part's Inf doesn't reach the others
