"""Which GPUs there are: NVIDIA, AMD, simulated."""
