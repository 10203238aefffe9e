"""Bounding and reducing the tables of a loss: from raw values per term and sample to one scalar.

Everything here runs inside the compiled step, on tables whose cells the verdict reads as they are, not as bounded: so
none of the bounds can hide a value that is not finite. (A plain `minimum(nan, cap)` gives `cap` on some back ends.)

Three bounds, for a cap c and a raw cell L:

`scaled`  L * c / max(c, stop_gradient(|L|)): the value is at most c, the gradient keeps its direction and shrinks by
          c / |L|. Right for negative values too. The default.
`huber`   L up to c, then 2 * sqrt(c * L) - c: the Huber function of sqrt(L). Grows slowly, never stops learning.
`hard`    min(mean, c) on the mean of the term, as often published. Above the cap its gradient is exactly zero: the
          batch teaches nothing, and a term that starts above the cap never trains. Kept for comparison only.
"""

from mindspore import ops


def bound_cells(row, cap: float, kind: str):
    """Bound every cell.

    Args:
        row: raw values, float32, of any shape.
        cap: the largest value a cell may count with; positive.
        kind: `scaled`, `huber` or `hard`. `hard` leaves cells alone: it bounds the mean, see `term_means`.

    Returns:
        Tensor of the same shape. A NaN cell stays NaN.
    """
    if kind == "scaled":
        size = ops.stop_gradient(ops.abs(row))
        return row * (cap / ops.select(size > cap, size, ops.full_like(size, cap)))
    if kind == "huber":
        large = ops.abs(row) > cap
        inner = ops.select(large, ops.abs(row), ops.full_like(row, cap))  # a safe argument for sqrt where it is not used
        return ops.select(large, ops.sign(row) * (2.0 * ops.sqrt(cap * inner) - cap), row)
    return row


def counted(table, weight):
    """The cells that count: select(weight > 0, table, 0). A cell with weight 0 can't reach a sum, whatever it holds."""
    return ops.select(weight > 0, table, ops.zeros_like(table))


def weighted_sum(table, weight):
    """(T, B) cells that count and their weights -> (T,) sums over each row of cell x weight.

    As a matrix product: MindSpore's CPU kernel for a sum to one number splits its work by trial in the first calls of a
    process, so the same numbers may give another last digit after a resume.
    """
    rows, columns = table.shape
    return ops.bmm(table.reshape((rows, 1, columns)), weight.reshape((rows, columns, 1))).reshape((-1,))


def term_means(used, weight, denominator, cap: float, kind: str):
    """Bounded means of the terms.

    Args:
        used: raw values of the cells that count (T, B), float32: see `counted`.
        weight: their weights (T, B), at least 0.
        denominator: (T,) max(sum of the weights over the global batch, 1).

    Returns:
        (T,): weighted_sum(bounded cells) / denominator; with `hard`, min(mean, cap).
    """
    means = weighted_sum(bound_cells(used, cap, kind), weight) / denominator
    if kind == "hard":
        return ops.select(means > cap, ops.full_like(means, cap), means)
    return means
