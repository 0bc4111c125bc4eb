"""Write model folders and model cards, push them to the Hub, and find or convert existing models."""
