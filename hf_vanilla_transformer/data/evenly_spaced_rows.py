"""Choose a reproducible sample of rows without drawing random numbers."""


def pick_evenly_spaced_rows(total: int, limit: int) -> list[int]:
    """Return the indices of at most `limit` of `total` rows, at equal distances from the first row on.

    The result depends on the two numbers only, so every run and every process picks the same rows. If there are no more
    than `limit` rows, all of them are returned.
    """
    if total <= limit:
        return list(range(total))
    return [index * total // limit for index in range(limit)]
