"""One command per question; see docs/performance.md for what each answers and how."""
