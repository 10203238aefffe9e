"""ResNet weights of torchvision and timm: from a local safetensors file into a backbone, name by name.

    line = load_weights(network.backbone, Path("resnet18.safetensors"))     # what was taken, what not
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from mindspore import Parameter, Tensor, ops

from finite.errors import UserError
from finite.tasks.detection.backbones import LAYERS, ResNet

#: RGB mean and deviation on the 0..255 scale that such weights were trained with (ImageNet's, as torchvision and timm
#: document them): a network that starts from them must see its inputs in the same way.
INPUT_MEAN = 255 * np.array([0.485, 0.456, 0.406])
INPUT_STD = 255 * np.array([0.229, 0.224, 0.225])

#: BatchNorm's tensors: PyTorch's name -> MindSpore's, and back.
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
TORCH_NORM = {ours: theirs for theirs, ours in NORM.items()}

#: Blocks of the ResNets of three convolutions each, to name what a file holds (He et al. 2015, arXiv:1512.03385, table 1).
BOTTLENECKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
#: The floating point types of safetensors that NumPy has.
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
#: How PyTorch's own files begin (zip, pickle), and what they are called.
TORCH = (b"PK\x03\x04", *(b"\x80" + bytes([protocol]) for protocol in range(2, 6)))
TORCH_SUFFIXES = (".pt", ".pth")


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


def load_weights(backbone: ResNet, path: Path) -> str:
    """Put the weights of a safetensors file (a torchvision or timm ResNet's state) into a new backbone.

    Returns what to tell the user: also what the file holds besides, which is ignored. Raises UserError when the file can't be
    read or holds another network; then nothing was changed.
    """
    given, told = fitting(path, backbone)
    parameters = own(backbone)
    for name, p in parameters.items():
        ops.assign(p, Tensor(given[name]))
    return f"backbone from {path}: {len(parameters)} tensors taken{told}; inputs are scaled by ImageNet's mean and deviation"


def own(backbone: ResNet) -> dict[str, Parameter]:
    """The backbone's parameters by name, without the part's name in front."""
    return {p.name.removeprefix("backbone."): p for p in backbone.get_parameters()}


def fitting(path: Path, backbone: ResNet) -> tuple[dict[str, np.ndarray], str]:
    """A file's tensors for this backbone, float32, by our names; and what it holds besides, in words that begin with a comma.

    Tensors of a larger model are found by the beginning that all names of the backbone have in common ("module.backbone.").
    Raises UserError when the file can't be read or holds another network.
    """
    found = read(path)
    shapes = {torch_name(name): tuple(p.shape) for name, p in own(backbone).items()}
    begins = beginning(path, shapes, found)
    inside = {name.removeprefix(begins): entry for name, entry in found.items() if name.startswith(begins)}
    counters = [name for name in inside if name.endswith("num_batches_tracked")]
    head = sorted(name for name in inside if name.startswith("fc."))
    given = {name: entry for name, entry in inside.items() if name not in {*counters, *head}}
    trouble = mismatches(shapes, given)
    if trouble:
        if layout(given) != layout(shapes):
            raise UserError(f"model.weights: {path} is laid out as {described(given)}, but model.backbone is {described(shapes)}; "
                            "choose the file or model.backbone to fit")
        more = f" and {len(trouble) - 4} more" if len(trouble) > 4 else ""
        raise UserError(f"model.weights: {path} does not fit the backbone: {'; '.join(trouble[:4])}{more}; choose the file "
                        "or model.backbone to fit")
    tensors = {our_name(name): numbers(path, begins + name, given[name]) for name in shapes}
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise UserError(f"model.weights: {path}: {begins}{torch_name(name)} is not finite; use another file")
    ignored = [f"its classifier ({', '.join(head)})"] if head else []
    ignored += [f"{len(counters)} batch counters"] if counters else []
    ignored += [f"{len(found) - len(inside)} tensors of other parts"] if len(found) > len(inside) else []
    return tensors, (f", their names begin with '{begins}'" if begins else "") + (f", ignored {' and '.join(ignored)}" if ignored else "")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The tensors of a safetensors file as they lie there, each with `dtype`, `shape` and `data`. Raises UserError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"model.weights: {path}: can't be read ({error.strerror})") from error
    try:
        return dict(sorted(safetensors.deserialize(data)))  # by name; the parser's order is another each time
    except Exception as error:  # whatever the parser meets in a foreign file
        if data.startswith(TORCH) or path.suffix in TORCH_SUFFIXES:
            raise UserError(f"model.weights: {path}: a PyTorch file, not a safetensors file; write one with PyTorch: "
                            f'safetensors.torch.save_file(model.state_dict(), "{path.stem}.safetensors")') from error
        first = (str(error).splitlines() or [type(error).__name__])[0][:100]
        raise UserError(f"model.weights: {path}: not a safetensors file ({first})") from error


def numbers(path: Path, name: str, entry: Mapping[str, Any]) -> np.ndarray:
    """A tensor as float32. Raises UserError when it does not hold floating point numbers of 16, 32 or 64 bits."""
    if entry["dtype"] == "BF16":  # the upper half of a float32
        return (np.frombuffer(entry["data"], "<u2").astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
    if entry["dtype"] not in FLOATS:
        raise UserError(f"model.weights: {path}: {name} is of type {entry['dtype']}; save the weights as float32")
    with np.errstate(over="ignore"):  # what float32 can't hold is not finite, which is looked at
        return np.frombuffer(entry["data"], FLOATS[entry["dtype"]]).astype(np.float32).reshape(entry["shape"])


def beginning(path: Path, wanted: Collection[str], found: Collection[str]) -> str:
    """What stands in front of the backbone's names in the file: mostly nothing, in a larger model "module.", "backbone." or so.
    Raises UserError when all of the backbone is there more than once."""
    first = "conv1.weight"
    places = {name.removesuffix(first) for name in found if name.endswith(first) and (name == first or name[-len(first) - 1] == ".")}
    hits = {place: sum(place + name in found for name in wanted) for place in sorted(places | {""}, key=lambda place: (len(place), place))}
    best = max(hits, key=hits.__getitem__)
    twins = [place for place, count in hits.items() if count == len(wanted)]
    if best and len(twins) > 1:
        raise UserError(f"model.weights: {path} holds {len(twins)} such backbones ({', '.join(twins)}); save the one that is meant alone")
    return best


def layout(names: Collection[str]) -> tuple[bool, tuple[int, ...]]:
    """Whether the blocks of a ResNet are bottlenecks (three convolutions), and their number in each of its layers."""
    numbers = [{name.split(".")[1] for name in names if name.startswith(f"layer{layer}.")} for layer in range(1, 5)]
    return any(name.startswith("layer1.0.conv3.") for name in names), tuple(map(len, numbers))


def described(names: Collection[str]) -> str:
    """A network in words, from the names of its tensors: "resnet50 (bottleneck blocks 3, 4, 6, 3)"."""
    bottleneck, blocks = layout(names)
    if not all(blocks):
        return "something else than a ResNet"
    known = BOTTLENECKS if bottleneck else LAYERS
    name = next((name for name, counts in known.items() if counts == blocks), "another ResNet")
    return f"{name} ({'bottleneck' if bottleneck else 'basic'} blocks {', '.join(map(str, blocks))})"


def mismatches(shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What keeps the tensors from being this network's, in the file's names: one short phrase each."""
    out = [f"{name} is missing" for name in shapes if name not in given]
    out += [f"{name} is unknown" for name in given if name not in shapes]
    out += [f"{name} is {tuple(given[name]['shape'])}, wanted {shape}" for name, shape in shapes.items()
            if name in given and tuple(given[name]["shape"]) != shape]
    return out
