def whole(number: float) -> int:
    return round(number)
