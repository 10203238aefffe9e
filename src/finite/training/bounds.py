"""Bounding and reducing the tables of a loss: from raw values per term and sample to one scalar.

Everything here runs inside the compiled step, on tables whose cells the verdict looks at *before* bounding: none of
the bounds may ever hide a value that is not finite. (A plain `minimum(nan, cap)` gives `cap` on some back ends.)

Three bounds, for a cap c and a raw cell L:

`scaled`  L * c / max(c, stop_gradient(|L|)): the value is at most c, the gradient keeps its direction and shrinks by
          c / |L|. Right for negative values too. The default.
`huber`   L up to c, then 2 * sqrt(c * L) - c: the Huber function of sqrt(L). Grows slowly, never stops learning.
`hard`    min(mean, c) on the mean of the term, as often published. Above the cap its gradient is exactly zero: the
          batch teaches nothing, and a term that starts above the cap never trains. Kept for comparison only.
"""

from mindspore import ops

BOUNDS = ("scaled", "huber", "hard")


def bound_cells(row, cap: float, kind: str):
    """Bound every cell of one term's row.

    Args:
        row: raw values, float32, shape (B,).
        cap: the largest value a cell may count with; positive.
        kind: one of `BOUNDS`. `hard` leaves cells alone: it bounds the mean, see `term_mean`.

    Returns:
        Tensor of shape (B,). A NaN cell stays NaN.
    """
    if kind == "scaled":
        size = ops.stop_gradient(ops.abs(row))
        return row * (cap / ops.select(size > cap, size, ops.full_like(size, cap)))
    if kind == "huber":
        large = ops.abs(row) > cap
        inner = ops.select(large, ops.abs(row), ops.full_like(row, cap))  # a safe argument for sqrt where it is not used
        return ops.select(large, ops.sign(row) * (2.0 * ops.sqrt(cap * inner) - cap), row)
    return row


def weighted_sum(row, weight):
    """sum(select(weight > 0, row, 0) * weight): a cell with weight 0 can't reach the sum, whatever it holds.

    As a matrix product: MindSpore's CPU kernel for a sum to one number splits its work by trial in the first calls of a
    process, so the same numbers may give another last digit after a resume.
    """
    used = ops.select(weight > 0, row, ops.zeros_like(row))
    return ops.matmul(used.reshape((1, -1)), weight.reshape((-1, 1))).reshape(())


def term_mean(row, weight, denominator, cap: float, kind: str):
    """One term's bounded mean.

    Args:
        row: raw values (B,), float32.
        weight: their weights (B,), at least 0.
        denominator: max(sum of the weights over the global batch, 1).

    Returns:
        Scalar tensor: weighted_sum(bounded row) / denominator; with `hard`, min(mean, cap).
    """
    mean = weighted_sum(bound_cells(row, cap, kind), weight) / denominator
    if kind == "hard":
        return ops.select(mean > cap, ops.full_like(mean, cap), mean)
    return mean
