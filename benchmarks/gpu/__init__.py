"""The engine on a GPU: `benchmarks/gpu.sh`."""
