"""Cards and leases: what GPUs there are, and who holds which of them."""
