"""`python -m benchmarks`: Postroom beside what people use instead, on one machine, in one run."""
