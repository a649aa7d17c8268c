"""lib_frameworks - shared by the tests of trainers: data, and FSDP2 on gloo."""
from lib_dcp import torch


def data():
    generator = torch.Generator().manual_seed(4)
    return [(torch.randn(6, generator=generator), torch.randn(2, generator=generator))
            for _ in range(32)]


def sum_on_gloo(module):
    """gloo has no mean."""
    module.set_force_sum_reduction_for_comms(True)
