"""The dense head on a ResNet: its maps come from weights of others' files, and a step of training reaches all of it."""

import mindspore as ms
import numpy as np
import safetensors.numpy
from mindspore import ParameterTuple, Tensor
from small_run import draw_set
from test_resnet_weights import BLOCKS, torch_features, torch_state

from finite.config import load
from finite.tasks import TASKS
from finite.tasks.detection.dense.locations import locations

SIZE = 64


def test_resnet18_takes_weights_from_a_file_and_learns(tmp_path):
    state = torch_state(seed=3)
    safetensors.numpy.save_file(state, tmp_path / "weights.safetensors")
    config = load(None, ["model.head=dense", "model.backbone=resnet18", f"model.image_size={SIZE}", "model.head_channels=8", "loss.box=giou",
                         f"model.weights={tmp_path / 'weights.safetensors'}", f"data.root={draw_set(tmp_path / 'data')}"])  # fmt: skip
    task = TASKS["dense"](config)
    (tmp_path / "kept").mkdir()
    source = task.data(tmp_path / "kept").train
    network = task.network()
    assert "fc.bias, fc.weight" in task.start_weights(network)["backbone"]

    # The coarsest map is that of an independent computation.
    network.set_train(False)
    rows = [source.row(i, 0, None) for i in range(2)]
    batch = [Tensor(np.stack([row[field.name] for row in rows])) for field in source.fields]
    statistics = [network.input_mean.asnumpy()[:, None, None], network.input_std.asnumpy()[:, None, None]]
    scaled = (rows[0]["image"] - statistics[0]) / statistics[1]
    fine, middle, coarse = (found.asnumpy() for found in network.backbone(Tensor(scaled[None].astype(np.float32))))
    assert (fine.shape, middle.shape, coarse.shape) == ((1, 128, 8, 8), (1, 256, 4, 4), (1, 512, 2, 2))
    expected = torch_features(state, scaled, BLOCKS["resnet18"])
    np.testing.assert_allclose(coarse[0], expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())

    # A step downhill: every weight has a gradient, and the loss falls.
    network.set_train(True)
    terms, weights = task.terms_cell(network), network.trainable_params()

    def total(*fields):
        values, counts, _ = terms(*fields)
        return (values[0] * counts[0]).sum() + (values[1] * counts[1]).sum()

    compiled = ms.jit(ms.value_and_grad(total, None, ParameterTuple(weights)))
    before, gradients = compiled(*batch)
    norm = np.sqrt(sum(float(np.square(g.asnumpy().astype(np.float64)).sum()) for g in gradients))
    assert np.isfinite(norm) and norm > 0
    still = {p.name for p, g in zip(weights, gradients) if not np.abs(g.asnumpy()).max() > 0}
    assert not {name for name in still if name.endswith("weight")}
    for p, g in zip(weights, gradients):
        ms.ops.assign(p, p - g * (0.02 / norm))
    now, _ = compiled(*batch)
    assert float(now.asnumpy()) < float(before.asnumpy())
    answers = task.predictor(network)
    scores, boxes = answers.answers(batch[0].asnumpy())
    assert scores.shape == (2, len(locations(SIZE)[0]), 2) and boxes.shape == (2, len(locations(SIZE)[0]), 4)
