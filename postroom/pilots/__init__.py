"""Pilots: agents that compute on other machines, which a cluster's own engine starts and ends."""
