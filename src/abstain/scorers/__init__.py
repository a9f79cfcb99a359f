"""Everything that gives a confidence, declared in one form and judged side by side."""
