"""Usage records, rates, money."""
