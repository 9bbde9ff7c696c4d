"""A device that is none: its tensors are computed on the processor, but say that they are elsewhere. As on a GPU, they
are not mixed with others, and NumPy does not take them.
"""

import contextlib

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

SET_UP = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
PUT = {"index_put", "index_put_", "_index_put_impl_"}


class Foreign(Tensor):
    """A tensor on the device.

    :ivar Tensor here: The same on the processor.
    """

    @staticmethod
    def __new__(cls, here):
        layout = {"strides": here.stride(), "storage_offset": here.storage_offset(), "layout": here.layout}
        tensor = Tensor._make_wrapper_subclass(cls, here.shape, dtype=here.dtype, device="foreign:0", **layout)
        tensor.here = here
        return tensor

    def __repr__(self):
        return f"Foreign({self.here})"

    def __deepcopy__(self, memo):
        return Foreign(self.here.detach().clone())

    def tolist(self):
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class _Everywhere(TorchDispatchMode):
    """Looks at functions of no tensors, too."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


def _run(function, args, kwargs):
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    is_foreign = any(isinstance(tensor, Foreign) for tensor in tensors)
    _check(function.overloadpacket.__name__, args, tensors)
    if kwargs.get("device") is not None:
        is_foreign, kwargs = torch.device(kwargs["device"]).type == "foreign", {**kwargs, "device": torch.device("cpu")}
    if is_foreign and kwargs.get("generator") is not None:
        raise RuntimeError(f"generator: expected one of the device, got one of {kwargs['generator'].device}")
    here = tree_map(lambda each: each.here if isinstance(each, Foreign) else each, (args, kwargs))
    result = function(*here[0], **here[1])
    writes = any(each.alias_info is not None and each.alias_info.is_write for each in function._schema.arguments)
    if writes and isinstance(result, Tensor):
        return tensors[0]
    return tree_map(lambda each: Foreign(each) if is_foreign and isinstance(each, Tensor) else each, result)


def _check(name, args, tensors):
    """Raises the error of torch if tensors are mixed that may not be: numbers may, and tensors may be copied."""
    foreign = [isinstance(tensor, Foreign) for tensor in tensors]
    # Indices may be on the processor.
    if name == "index":
        is_wrong = any(foreign) and not foreign[0]
    elif name in PUT:
        is_wrong = args[2].dim() > 0 and isinstance(args[2], Foreign) != foreign[0]
    elif name in ("stack", "cat"):
        is_wrong = any(foreign) and not all(foreign)
    else:
        is_wrong = (
            name != "copy_"
            and any(foreign)
            and any(not other and tensor.dim() for tensor, other in zip(tensors, foreign, strict=True))
        )
    if is_wrong:
        shapes = [(type(tensor).__name__, tuple(tensor.shape)) for tensor in tensors]
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, got {shapes}")


@contextlib.contextmanager
def foreign_device():
    """Context with the device, once for each process."""
    SET_UP("foreign")
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", _empty, "PrivateUse1")
    library.impl("_copy_from", _copied, "PrivateUse1")
    with _Everywhere():
        yield torch.device("foreign:0")


def _empty(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return Foreign(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copied(source, target, non_blocking=False):
    target.here.copy_(source)
    return target
