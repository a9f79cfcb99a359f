import torch

torch.set_num_threads(1)  # tiny probes: more threads only wait for each other
