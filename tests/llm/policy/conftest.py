"""What the tests of the policy share."""

import torch

torch.set_num_threads(1)
