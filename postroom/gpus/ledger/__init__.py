"""Who holds which GPU: leases in a shared folder or in Redis."""
