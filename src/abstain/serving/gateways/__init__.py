"""Gateways: each sends answers to the gate in its own protocol, all through one core."""
