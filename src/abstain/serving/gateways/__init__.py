"""Gateways: each brings answers to the gate by its own protocol, all through one core."""
