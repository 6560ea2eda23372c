"""What is built on the rest: pictures, reports, explorer, sweeps, benchmarks, the Python API."""
