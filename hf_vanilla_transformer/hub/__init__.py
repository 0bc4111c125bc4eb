"""A trained folder, its card, and its way to the Hub."""
