"""Other runtimes that stand in the place of a model: CTranslate2 and its process."""
