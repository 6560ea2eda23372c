"""Built on the other packages: figures, report, explorer, sweeps, benchmarks, Python API."""
