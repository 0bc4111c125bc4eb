"""Work with model folders: write them, fill their model cards, push them to the Hub, and find models in it."""
