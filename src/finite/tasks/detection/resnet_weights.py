"""ResNet weights of torchvision and timm: from a local safetensors file into a backbone, name by name.

    lines = load_weights(network.backbone, Path("resnet18.safetensors"))     # what was taken, what not
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy
from mindspore import Tensor, ops

from finite.errors import UserError
from finite.tasks.detection.backbones import ResNet

#: RGB mean and deviation on the 0..255 scale that such weights were trained with (ImageNet's, as torchvision and timm
#: document them): a network that starts from them must see its inputs in the same way.
INPUT_MEAN = 255 * np.array([0.485, 0.456, 0.406])
INPUT_STD = 255 * np.array([0.229, 0.224, 0.225])

#: BatchNorm's tensors: PyTorch's name -> MindSpore's, and back.
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
TORCH_NORM = {ours: theirs for theirs, ours in NORM.items()}


def is_norm(module: str) -> bool:
    """Whether a module of these names ("layer1.0.bn1", "layer2.0.downsample.1") is a BatchNorm."""
    return module.rpartition(".")[2].startswith("bn") or module.endswith("downsample.1")


def our_name(name: str) -> str:
    """torchvision's or timm's name of a backbone tensor -> ours, without the part's name in front."""
    module, _, leaf = name.rpartition(".")
    return f"{module}.{NORM.get(leaf, leaf)}" if is_norm(module) else name


def torch_name(name: str) -> str:
    """Our name of a backbone tensor -> torchvision's and timm's."""
    module, _, leaf = name.rpartition(".")
    return f"{module}.{TORCH_NORM.get(leaf, leaf)}" if is_norm(module) else name


def load_weights(backbone: ResNet, path: Path) -> list[str]:
    """Put the weights of a safetensors file (a torchvision or timm ResNet's state) into a new backbone.

    The file's classifier (`fc.*`) is ignored, which is said, as are BatchNorm's batch counters. Returns what to tell the
    user. Raises UserError when the file can't be read or holds another network; then nothing was changed.
    """
    found = read(path)
    head = [name for name in found if name.startswith("fc.")]
    given = {our_name(name): value for name, value in found.items()
             if name not in head and not name.endswith("num_batches_tracked")}
    wanted = {p.name.removeprefix("backbone."): p for p in backbone.get_parameters()}
    trouble = mismatches({name: tuple(p.shape) for name, p in wanted.items()}, given)
    if trouble:
        more = f" and {len(trouble) - 4} more" if len(trouble) > 4 else ""
        raise UserError(f"model.weights: {path} does not fit the backbone: {'; '.join(trouble[:4])}{more}; choose the file "
                        "or model.backbone to fit")
    for name, value in given.items():
        if not np.isfinite(value).all():
            raise UserError(f"model.weights: {path}: {torch_name(name)} is not finite; use another file")
    for name, p in wanted.items():
        ops.assign(p, Tensor(given[name].astype(np.float32)))
    ignored = f", ignored its classifier ({', '.join(sorted(head))})" if head else ""
    return [f"backbone from {path}: {len(wanted)} tensors taken{ignored}; inputs are scaled by ImageNet's mean and deviation"]


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file. Raises UserError when it is none, or of a type that NumPy lacks (bfloat16)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"model.weights: {path}: can't be read ({error.strerror})") from error
    try:
        return safetensors.numpy.load(data)
    except Exception as error:  # whatever the parser meets in a foreign file
        first = (str(error).splitlines() or [type(error).__name__])[0][:100]
        raise UserError(f"model.weights: {path}: not a safetensors file of float tensors ({first})") from error


def mismatches(shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, np.ndarray]) -> list[str]:
    """What keeps the tensors from being this network's, in the file's names: one short phrase each."""
    out = [f"{torch_name(name)} is missing" for name in shapes if name not in given]
    out += [f"{torch_name(name)} is unknown" for name in given if name not in shapes]
    out += [f"{torch_name(name)} is {given[name].shape}, wanted {shape}" for name, shape in shapes.items()
            if name in given and given[name].shape != shape]
    return out
