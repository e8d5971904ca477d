def with_tax(amount: int) -> float:
    return amount * 1.2
