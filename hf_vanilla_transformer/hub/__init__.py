"""A trained folder, its model card, and its way to the Hub."""
