"""Pick a reproducible sample of rows without using random numbers."""


def pick_evenly_spaced_rows(total: int, limit: int) -> list[int]:
    """Return the indices of at most `limit` rows, evenly spaced over `total` rows and starting with the first row.

    The result depends only on these two numbers, so every run and every process picks the same rows. If there are at
    most `limit` rows, the indices of all rows are returned.
    """
    if total <= limit:
        return list(range(total))
    return [index * total // limit for index in range(limit)]
