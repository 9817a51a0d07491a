"""Accelerators of data centres: what one device is called, how much memory it has, how it can be sliced.

Facts from the makers' data sheets: memory is the nominal size (GiB × 1024; drivers report a little less), a card with
several chips is listed as one chip where the driver shows each chip as a device. Resource names and slice templates
are those of the makers' Kubernetes device plugins, where only whole devices are offered, or of Project HAMi's sharing
driver (github.com/Project-HAMi/HAMi, docs/ascend910b-support.md, docs/kunlun-vxpu-support.md and their neighbours).

Rates are NOT facts: plausible list prices per GPU-hour for the demo, in no particular currency.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Literal

from scheduling.core.units import MILLI_PER_DEVICE

SliceRule = Literal["any", "templates", "whole"]


@dataclass(frozen=True, slots=True)
class SliceTemplate:
    """One fixed size that a device can be cut into: its share of the compute and its memory."""

    name: str
    compute_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One model. ``slice_rule``: any multiple of a pool's step, only ``templates`` or the whole, or only the whole."""

    name: str
    vendor: str
    family: str
    memory_mib: int
    resource: str
    slice_rule: SliceRule
    demo_rate: Decimal  # per GPU-hour
    templates: tuple[SliceTemplate, ...] = ()  # ascending

    @property
    def stored_templates(self) -> tuple[dict[str, str | int], ...]:
        """The templates as ``inventory.services.set_accelerator_model`` takes them."""
        return tuple(
            {"name": each.name, "compute_milli": each.compute_milli, "memory_mib": each.memory_mib}
            for each in self.templates
        )

    def fitting(self, compute_milli: int) -> int:
        """The least slice of this model, in milli of a device, that gives at least ``compute_milli`` (1..1000)."""
        if self.slice_rule == "any":
            return compute_milli
        sizes = [template.compute_milli for template in self.templates if template.compute_milli >= compute_milli]
        return min(sizes, default=MILLI_PER_DEVICE)


def _model(
    name: str,
    vendor: str,
    family: str,
    memory_gib: int,
    resource: str,
    rate: str,
    slices: SliceRule | tuple[SliceTemplate, ...] = "any",
) -> Accelerator:
    rule: SliceRule = slices if isinstance(slices, str) else "templates"
    templates = () if isinstance(slices, str) else slices
    return Accelerator(name, vendor, family, memory_gib * 1024, resource, rule, Decimal(rate), templates)


_ASCEND_910B = (SliceTemplate("vir05_1c_16g", 250, 16384), SliceTemplate("vir10_3c_32g", 500, 32768))
_ASCEND_310P = (
    SliceTemplate("vir01", 125, 3072),
    SliceTemplate("vir02", 250, 6144),
    SliceTemplate("vir04", 500, 12288),
)
_P800 = (SliceTemplate("quarter", 250, 24576), SliceTemplate("half", 500, 49152))

ACCELERATOR_MODELS: tuple[Accelerator, ...] = (
    _model("B200-180G", "nvidia", "Blackwell", 180, "nvidia.com/gpu", "6.50"),
    _model("H200-141G", "nvidia", "Hopper", 141, "nvidia.com/gpu", "4.60"),
    _model("H100-80G", "nvidia", "Hopper", 80, "nvidia.com/gpu", "3.90"),
    _model("H800-80G", "nvidia", "Hopper", 80, "nvidia.com/gpu", "3.60"),
    _model("H20-96G", "nvidia", "Hopper", 96, "nvidia.com/gpu", "1.90"),
    _model("A100-80G", "nvidia", "Ampere", 80, "nvidia.com/gpu", "2.40"),
    _model("A100-40G", "nvidia", "Ampere", 40, "nvidia.com/gpu", "1.90"),
    _model("A30-24G", "nvidia", "Ampere", 24, "nvidia.com/gpu", "0.95"),
    _model("A10-24G", "nvidia", "Ampere", 24, "nvidia.com/gpu", "0.80"),
    _model("L40S-48G", "nvidia", "Ada Lovelace", 48, "nvidia.com/gpu", "1.40"),
    _model("L4-24G", "nvidia", "Ada Lovelace", 24, "nvidia.com/gpu", "0.60"),
    _model("T4-16G", "nvidia", "Turing", 16, "nvidia.com/gpu", "0.35"),
    _model("V100-32G", "nvidia", "Volta", 32, "nvidia.com/gpu", "0.95"),
    _model("V100-16G", "nvidia", "Volta", 16, "nvidia.com/gpu", "0.75"),
    _model("P100-16G", "nvidia", "Pascal", 16, "nvidia.com/gpu", "0.45"),
    _model("MI325X-256G", "amd", "CDNA 3", 256, "amd.com/gpu", "3.40", "whole"),
    _model("MI300X-192G", "amd", "CDNA 3", 192, "amd.com/gpu", "2.90", "whole"),
    _model("MI250X-GCD-64G", "amd", "CDNA 2", 64, "amd.com/gpu", "0.90", "whole"),
    _model("MI210-64G", "amd", "CDNA 2", 64, "amd.com/gpu", "0.95", "whole"),
    _model("Ascend-910B-64G", "ascend", "Da Vinci", 64, "huawei.com/Ascend910", "1.60", _ASCEND_910B),
    _model("Ascend-910A-32G", "ascend", "Da Vinci", 32, "huawei.com/Ascend910", "0.80", "whole"),
    _model("Ascend-310P-24G", "ascend", "Da Vinci", 24, "huawei.com/Ascend310P", "0.30", _ASCEND_310P),
    _model("Kunlun-P800-96G", "kunlun", "XPU", 96, "kunlunxin.com/xpu", "1.50", _P800),
    _model("Kunlun-R200-32G", "kunlun", "XPU", 32, "kunlunxin.com/xpu", "0.50", "whole"),
    _model("MLU370-X8-48G", "cambricon", "MLUarch03", 48, "cambricon.com/mlu", "0.70"),
    _model("MLU370-S4-24G", "cambricon", "MLUarch03", 24, "cambricon.com/mlu", "0.40"),
    _model("MLU290-M5-32G", "cambricon", "MLUv02", 32, "cambricon.com/mlu", "0.60", "whole"),
    _model("K100-AI-64G", "hygon", "DCU", 64, "hygon.com/dcu", "0.90"),
    _model("Z100L-32G", "hygon", "DCU", 32, "hygon.com/dcu", "0.50"),
    _model("Gaudi2-96G", "intel", "Gaudi", 96, "habana.ai/gaudi", "1.30", "whole"),
    _model("Gaudi3-128G", "intel", "Gaudi", 128, "habana.ai/gaudi", "1.90", "whole"),
)

BY_NAME = MappingProxyType({model.name: model for model in ACCELERATOR_MODELS})
