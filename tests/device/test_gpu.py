"""A GPU computes what the CPU computes."""

import pytest
import torch

from tests.device.checks import CHECKS, COMPILED_CHECKS, GPU_CHECKS


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]


@pytest.mark.parametrize("check", [*CHECKS, *GPU_CHECKS, *COMPILED_CHECKS], ids=lambda check: check.__name__)
def test_as_on_the_cpu(check):
    check("cuda")
