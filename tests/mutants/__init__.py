"""Rules of the protocol, removed one at a time: each must be missed by some test."""
