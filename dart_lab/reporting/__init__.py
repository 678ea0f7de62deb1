"""Results of benchmarks: named numbers, the machine that they were measured on, the aims that they are held against."""
