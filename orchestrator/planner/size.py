"""How large a checkpoint is: bytes a parameter by what is kept of it, times parameters. Decimal bytes."""

from __future__ import annotations

from dataclasses import dataclass

# What one value takes. "none": this part is not in the checkpoint.
BYTES_OF = {"none": 0.0, "fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
MOMENTS = 2                            # Adam's: the mean and the mean square of the gradient

GIB_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What is kept of a parameter that is trained, in bytes."""

    weights: float
    master: float = 0.0
    moments: float = 0.0
    gradients: float = 0.0             # some papers count them; nobody needs them in a checkpoint

    @property
    def total(self) -> float:
        return self.weights + self.master + self.moments + self.gradients


def layout(*, weights: str = "bf16", master: str = "fp32", moments: str = "fp32", gradients: str = "none") -> Layout:
    """From names of number formats. bf16 weights with an fp32 copy and fp32 moments make 14 bytes (Megatron-LM), fp32 weights
    without a copy 12 (FSDP2, TorchTitan), bf16 moments 10 (DeepSeek-V3). Raises KeyError for an unknown format."""
    return Layout(weights=BYTES_OF[weights], master=BYTES_OF[master], moments=MOMENTS * BYTES_OF[moments],
                  gradients=BYTES_OF[gradients])


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A checkpoint's size, whole and by part."""

    params: float
    nodes: int
    components_bytes: dict[str, float]

    @property
    def size_bytes(self) -> float:
        return sum(self.components_bytes.values())

    @property
    def per_node_bytes(self) -> float:
        """Of a sharded checkpoint, where every node writes an equal part."""
        return self.size_bytes / self.nodes

    @property
    def bytes_per_param(self) -> float:
        """Mean over all parameters, frozen ones among them."""
        return self.size_bytes / self.params


def size_of_layout(params: float, layout: Layout, *, nodes: int = 1, frozen_params: float = 0.0) -> Size:
    """S = P b. Of frozen parameters the weights alone are kept."""
    trained = params - frozen_params
    parts = {"weights": trained * layout.weights, "master": trained * layout.master, "moments": trained * layout.moments,
             "gradients": trained * layout.gradients, "frozen_weights": frozen_params * layout.weights}
    return Size(params=params, nodes=nodes, components_bytes={name: value for name, value in parts.items() if value})


def size_of_bytes_per_param(
    params: float, bytes_per_param: float, *, nodes: int = 1, frozen_params: float = 0.0, frozen_bytes: float = 2.0,
) -> Size:
    """S = P b with b as it was measured or is known, for the parameters that are trained."""
    parts = {"trained": (params - frozen_params) * bytes_per_param, "frozen_weights": frozen_params * frozen_bytes}
    return Size(params=params, nodes=nodes, components_bytes={name: value for name, value in parts.items() if value})


def kept_gib(size_bytes: float, keep: int) -> float:
    """k S in GiB of 2^30 bytes: what that many generations take."""
    return keep * size_bytes / GIB_BYTES
