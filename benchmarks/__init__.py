"""Benchmarks, a folder for each question; docs/performance.md says what each answers, and how."""
